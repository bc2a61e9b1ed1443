"""SASL OAUTHBEARER: tokens of a real OpenID endpoint, asked for by librdkafka or by a function of the operator's own, for every client of the
jobs and of Airflow, also where a client outlives its token; every way to have none is said in a line.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from include.airflow.triggers import RecordsWaiting
from include.local.process import free_port
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka import offsets
from spark_jobs.kafka.messages import messages_for, reading_of_compounds
from spark_jobs.kafka.publisher import publish_partition
from spark_jobs.kafka.records import Share, Span, read_shares
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import BrokerProblem, kafka_settings
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.tables.diagnose import translate_file_errors
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers import secured_broker
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.reading import consume, table_rows
from tests.helpers.secret_search import holding
from tests.helpers.token_server import SECRET, TokenBroker, TokenServer, oidc_login, provider_login
from tests.integration import test_secured_broker
from tests.integration.test_publishing import CALLS, pair_made_up, plan

pytestmark = pytest.mark.integration

certificates, connect = secured_broker.certificates, test_secured_broker.connect


@pytest.fixture(scope="module")
def server(certificates):
    with TokenServer(certificates).running() as running:
        yield running


@pytest.fixture(scope="module")
def broker(certificates, server, tmp_path_factory):
    """Instead of the one of all other tests."""
    with TokenBroker(tmp_path_factory.mktemp("tokens"), certificates, server) as running:
        yield running


@pytest.fixture(autouse=True)
def server_as_it_was(server):
    before = (server.lifetime_s, server.audience, server.signed_by_stranger, server.answer)
    yield
    server.lifetime_s, server.audience, server.signed_by_stranger, server.answer = before


@pytest.fixture
def logins(broker, certificates):
    return {"oidc": oidc_login(broker, certificates), "provider": provider_login(broker, certificates)}


@pytest.fixture
def logged_in(warehouse, pipeline, broker):
    """The pipeline with a consumer group, and its user with the documented rights."""
    mine = replace(pipeline, consumer_group=f"{pipeline.name}.lag")
    grant(broker.bootstrap, "User:pairing", documented(mine))
    return replace(warehouse, pipeline=mine)


@pytest.mark.parametrize("way", ["oidc", pytest.param("provider", marks=pytest.mark.long)])
def test_the_whole_way_with_tokens(way, logins, connect, logged_in, send, broker, server):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(5):
        send("a", f"u{number}", ago, number)
        send("m", f"u{number}", ago + 50, number)
    connect(logins[way])
    before = len(server.given)
    watch = RecordsWaiting(
        {side.topic: side.connection for side in logged_in.pipeline.sides}, logged_in.pipeline.consumer_group, []
    )
    # On a broker that has just started the group's coordinator may still move; the watch itself looks again.
    assert retry_transient(watch._look)[1] is True
    land_events.main(logged_in, 1_000, ())
    assert retry_transient(watch._look)[1] is False
    pair_events.main(logged_in)
    assert publish_compounds.main(logged_in)["sent"] == 5
    assert report_quality.main(logged_in)["batches"] == 1
    assert not reconcile.main(logged_in).offenders
    published = consume(broker.bootstrap, logged_in.pipeline.output_topic)
    assert sorted(m["pair-id"] for m in published) == sorted(
        row["pair_id"] for row in table_rows(logged_in, "compound_events")
    )
    assert len(server.given) - before > 10


@pytest.mark.long
@pytest.mark.parametrize("way", ["oidc", "provider"])
def test_a_client_that_outlives_its_token_gets_another(way, logins, connect, logged_in, send, broker, server):
    """The reader and the publisher of the workers, each at work for longer than two tokens live."""
    pipeline = logged_in.pipeline
    for number in range(400):
        send("a", f"u{number}", number, "x" * 1_000)
    pair_made_up(logged_in, 1, {})
    connect(logins[way] | {"max.partition.fetch.bytes": 1_000, "queued.min.messages": 1})
    run = plan(logged_in)
    server.lifetime_s = 5.0

    def slowly(things):
        for number, thing in enumerate(things):
            if number == 1:
                time.sleep(12)
            yield thing

    def read(partition):
        share = Share(pipeline.left.topic, partition, Span(0, end[pipeline.left.topic, partition]))
        return [offset for piece in slowly(read_shares(kafka_settings(), [share])) for offset in piece["offset"].to_pylist()]

    def publish(partition):
        table = reading_of_compounds(logged_in, {1: PARTITIONS}, range(1, 2)).to_arrow()
        mine = table.filter([number == partition for number in table["output_partition"].to_pylist()]).to_batches()
        return publish_partition(kafka_settings(), run, partition, slowly(messages_for(partition, mine))).sent

    end = offsets.ask_broker(kafka_settings(), [pipeline.left.topic]).end
    before = len(server.given)
    with ThreadPoolExecutor() as threads:
        offsets_read, sent = threads.map(read, range(PARTITIONS)), threads.map(publish, range(PARTITIONS))
        assert [len(each) for each in offsets_read] == [end[pipeline.left.topic, number] for number in range(PARTITIONS)]
        assert sum(sent) == CALLS
    # Two readers, and two publishers with a consumer and a producer, twice at least after their first.
    assert len(server.given) - before >= 3 * 3 * PARTITIONS
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == CALLS


REFUSED_TOKENS = [("audience", "provider"), ("signed_by_stranger", "oidc"), ("signed_by_stranger", "provider")]
WRONG = {
    "secret": (
        {"sasl.oauthbearer.client.secret": "other"},
        NeedsOperator,
        "^no token for Kafka at .*invalid_client.*are client id, secret",
    ),
    "scope": ({"sasl.oauthbearer.scope": "other"}, NeedsOperator, "^no token for Kafka at .*invalid_scope"),
    "endpoint": (
        {"sasl.oauthbearer.token.endpoint.url": f"https://127.0.0.1:{free_port()}/"},
        BrokerProblem,
        "^no token for Kafka at .*connect",
    ),
    "authority": ({"https.ca.location": "stranger.pem"}, BrokerProblem, "^no token for Kafka at .*SSL certificate"),
}


@pytest.mark.parametrize(
    "wrong", ["secret", "authority", *(pytest.param(name, marks=pytest.mark.long) for name in ("scope", "endpoint"))]
)
def test_a_token_that_cannot_be_had_is_said_in_a_line(wrong, logins, connect, warehouse, certificates, monkeypatch):
    changes, kind, line = WRONG[wrong]
    changes = {name: str(certificates / value) if name == "https.ca.location" else value for name, value in changes.items()}
    connect(logins["oidc"] | changes)
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 2.0)
    with pytest.raises(JobProblem, match=line) as refused:
        land_events.main(warehouse, 1_000, ())
    assert type(refused.value) is kind and SECRET not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.long
def test_an_endpoint_with_an_error_of_its_own_is_hinted_at(logins, connect, warehouse, server, monkeypatch):
    connect(logins["oidc"])
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 2.0)
    # The client tries again for a minute, without a word.
    server.answer = (503, {"error": "temporarily_unavailable"})
    with pytest.raises(BrokerProblem, match=r"^no answer from Kafka at .*token endpoint"):
        land_events.main(warehouse, 1_000, ())


@pytest.mark.parametrize(
    ("what", "way"),
    [("audience", "oidc"), *(pytest.param(*case, marks=pytest.mark.long) for case in REFUSED_TOKENS)],
)
def test_a_token_that_the_broker_refuses_is_said_in_a_line(what, way, logins, connect, warehouse, server, monkeypatch):
    connect(logins[way])
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 2.0)
    setattr(server, what, {"audience": "others", "signed_by_stranger": True}[what])
    with pytest.raises(NeedsOperator, match=r"^Kafka at .* refuses the connection .*invalid_token.*token") as refused:
        land_events.main(warehouse, 1_000, ())
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_the_machines_own_authorities_are_taken_for_the_endpoint(logins, connect, logged_in, certificates, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "authority.pem"))
    connect({name: value for name, value in logins["oidc"].items() if name != "https.ca.location"})
    assert land_events.main(logged_in, 1_000, ())["landed"] == 0


@pytest.fixture
def only_here(tmp_path, monkeypatch):
    """A provider that this process can import, and Spark's workers cannot, until it is handed out."""
    (tmp_path / "only_here.py").write_text("from tests.helpers.token_functions import from_server as token\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.long
def test_a_provider_that_the_workers_lack_is_said_in_a_line(only_here, logins, connect, logged_in, send, monkeypatch):
    monkeypatch.setenv(FEW_VARIABLE, "0")
    send("a", "u", time.time_ns() // 1_000_000 - 3_600_000, 1)
    connect(logins["provider"] | {"token_provider": "only_here.token"})
    line = r"^token_provider only_here.token of kafka_default cannot be imported by \S+ on \S+ \(ModuleNotFoundError: No module named 'only_here'\)"
    with pytest.raises(NeedsOperator, match=line), translate_file_errors(logged_in.root):
        land_events.main(logged_in, 1_000, ())
    connect(logins["provider"])
    # Finishes the planned batch.
    land_events.main(logged_in, 1_000, ())
    pair_events.main(logged_in)
    connect(logins["provider"] | {"token_provider": "only_here.token"})
    with pytest.raises(NeedsOperator, match=line):
        publish_compounds.main(logged_in)
    connect(logins["provider"])
    assert publish_compounds.main(logged_in)["sent"] == 1


def test_a_provider_without_a_token_fails_job_and_watch_in_a_line(logins, connect, logged_in, server, monkeypatch):
    server.answer = (401, {"error": "invalid_client"})
    connect(logins["provider"])
    line = "^token_provider tests.helpers.token_functions.from_server of kafka_default failed by .*HTTPError: HTTP Error 401"
    with pytest.raises(JobProblem, match=line):
        land_events.main(logged_in, 1_000, ())
    watch, said = RecordsWaiting({side.topic: side.connection for side in logged_in.pipeline.sides}, "any", []), []
    log = SimpleNamespace(warning=lambda text, *values: said.append(text % values))
    monkeypatch.setattr(RecordsWaiting, "log", log)

    async def looks():
        await anext(watch.run())

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(looks(), 3))
    assert re.match("no answer from Kafka about .*: " + line.removeprefix("^"), said[0])


@pytest.mark.long
@pytest.mark.parametrize("way", ["oidc", "provider"])
def test_neither_secret_nor_token_is_written_anywhere(way, logins, logged_in, send, server, tmp_path):
    """By jobs as processes, with success and failure, and with all that librdkafka tells of security."""
    written = tmp_path / "written"
    written.mkdir()
    send("a", "u", time.time_ns() // 1_000_000 - 3_600_000, 1)
    jobs = Jobs(yaml_of(logged_in.pipeline, written), logged_in.pipeline, "", "", written / "warehouse")
    jobs.environment |= {"PAIRING_KAFKA": json.dumps(logins[way] | {"debug": "security"}), "TMPDIR": str(written)}
    for job in JOBS:
        running = jobs.start(job)
        assert running.wait() == 0, running.told()
        (written / f"{job}.told").write_text(running.told())
    server.answer = (401, {"error": "invalid_client", "error_description": f"not {SECRET}"})
    running = jobs.start("land_events")
    assert running.wait() == 1
    (written / "failed.told").write_text(running.told())
    assert running.told().splitlines()[-1].startswith("error: ")
    header = server.given[-1].partition(".")[0]
    assert holding(written, header) == holding(written, SECRET) == []
