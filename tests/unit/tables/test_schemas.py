"""The columns of the tables, read without Spark, are those that Spark reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql.types import StructType

from spark_jobs.tables.schemas import declared_schema, schemas
from tests.helpers.timeline import CALLS

UNORDERED = replace(CALLS, key_order="any")
CHAINED = replace(CALLS, left=replace(CALLS.left, compounds=True))


@pytest.mark.parametrize("pipeline", [CALLS, UNORDERED, CHAINED], ids=["calls", "keys in any order", "compounds"])
def test_every_table_has_the_columns_that_spark_would_read(spark, pipeline):
    for table, declaration in schemas(pipeline).items():
        assert declared_schema(pipeline, table) == StructType.fromDDL(declaration)
