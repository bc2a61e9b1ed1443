"""A broker with TLS, logins and rights: every way in that the settings allow goes the whole way with the rights that are documented
and no others, and a wrong setting is said in a line.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from spark_jobs import land_events, pair_events, publish_compounds, reconcile, replay_interval, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import offsets
from spark_jobs.kafka.settings import VARIABLE, BrokerProblem, kafka_settings
from spark_jobs.tables.records import Window
from tests.helpers import secured_broker
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.reading import consume, table_rows
from tests.helpers.secured_broker import PASSWORD

pytestmark = pytest.mark.integration

certificates, broker, ways_in = secured_broker.certificates, secured_broker.broker, secured_broker.ways_in
PRINCIPALS = {"scram": "User:pairing", "plain": "User:pairing", "certificate": "User:CN=client"}


@pytest.fixture
def connect(monkeypatch, tmp_path):
    """connect(extra): what Airflow's operator does with the extra of the connection."""

    def as_the_operator_does(extra):
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
        from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        hook = KafkaBaseHook(kafka_config_id="kafka_default")
        monkeypatch.setenv(VARIABLE, json.dumps(hook.get_connection("kafka_default").extra_dejson))

    return as_the_operator_does


# By default test_tokens.py goes this way, and test_secrets.py with SCRAM.
@pytest.mark.long
@pytest.mark.parametrize("way", ["scram", "plain", "certificate"])
def test_the_whole_way_over_a_secured_connection(way, ways_in, connect, warehouse, pipeline, send, broker, capsys):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(5):
        send("a", f"u{number}", ago, number)
        send("m", f"u{number}", ago + 50, number)
    connect(ways_in[way])
    assert kafka_settings() == ways_in[way]
    warehouse = replace(warehouse, pipeline=replace(pipeline, consumer_group=f"{pipeline.name}.lag"))
    grant(broker.bootstrap, PRINCIPALS[way], documented(warehouse.pipeline))
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["sent"] == 5
    published = consume(broker.bootstrap, pipeline.output_topic)
    assert sorted(m["pair-id"] for m in published) == sorted(
        row["pair_id"] for row in table_rows(warehouse, "compound_events")
    )
    assert all(m["value"]["analytics"] == m["value"]["metrics"] for m in published)
    assert report_quality.main(warehouse)["batches"] == 1
    assert replay_interval.main(warehouse, Window(ago, ago + 1))["unchanged"] == 5
    answer = reconcile.main(warehouse)
    assert not answer.offenders and answer.counts["… on the output topic"] == 5
    # Nor is there a right missing without which it goes on.
    assert "kafka-acls" not in capsys.readouterr().err


WRONG = {
    "password": ("scram", {"sasl.password": "other"}, "uthentication failed"),
    "password of PLAIN": ("plain", {"sasl.password": "other"}, "uthentication failed"),
    "authority": ("scram", {"ssl.ca.location": "stranger.pem"}, "certificate verify failed"),
}


@pytest.mark.parametrize(
    "wrong", [pytest.param(way, marks=pytest.mark.long) if way == "password of PLAIN" else way for way in WRONG]
)
def test_a_wrong_setting_is_said_in_a_line(wrong, ways_in, connect, warehouse, certificates, monkeypatch):
    way, changes, reason = WRONG[wrong]
    if "ssl.ca.location" in changes:
        changes = {"ssl.ca.location": str(certificates / changes["ssl.ca.location"])}
    connect(ways_in[way] | changes)
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 3.0)
    with pytest.raises(NeedsOperator) as refused:
        land_events.main(warehouse, 1_000, ())
    assert reason in str(refused.value) and PASSWORD not in str(refused.value) and "\n" not in str(refused.value)
    assert table_rows(warehouse, "batch_ledger") == []


def test_the_wrong_protocol_is_hinted_at(ways_in, connect, warehouse, monkeypatch):
    connect(ways_in["scram"] | {"security.protocol": "SASL_PLAINTEXT"})
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 3.0)
    with pytest.raises(
        BrokerProblem,
        match=r"no answer from Kafka at .*are bootstrap\.servers and security\.protocol of kafka_default right",
    ):
        land_events.main(warehouse, 1_000, ())


def test_an_authority_that_is_not_there_is_named(ways_in, connect, warehouse, certificates):
    connect(ways_in["scram"] | {"ssl.ca.location": str(certificates / "nowhere.pem")})
    with pytest.raises(NeedsOperator, match=r"refused by the client: .*ssl\.ca\.location failed"):
        land_events.main(warehouse, 1_000, ())
