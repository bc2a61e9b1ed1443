"""The rules of compaction: which messages a compacted topic need not have any more.

Of each key a partition keeps the last record; all before it may go, and a last record without a value may go itself after a time.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def with_replaced(compounds: DataFrame) -> DataFrame:
    """Adds to rows of `by_compound` with `due` whether the message was `replaced`: it is gone, as the rules allow.

    Messages of a key are sent by (batch_id, ts); of several with the same, one must be there. What is not due and there may be later than all.
    """
    mine = Window.partitionBy("key", F.coalesce("output_partition", "partition"))
    due, there, at = F.col("due"), F.col("messages") > 0, F.struct("batch_id", "ts")
    is_last = due & at.eqNullSafe(F.max(F.when(due, at)).over(mine))
    rows = compounds.withColumn("is_last", is_last)
    of_the_last = F.col("is_last") & (there | F.col("retracts"))
    kept = F.max(of_the_last | (~due & there)).over(mine)
    return rows.withColumn("replaced", due & ~there & (~F.col("is_last") | kept)).drop("is_last")
