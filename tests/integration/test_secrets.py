"""No secret of any connection is in what jobs write, say or are called with: all jobs, done well and failed, with the event log on.

Each secret has a marker in it that is found nowhere else.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable

from include.config.project import REMOTE_VARIABLE
from include.local import spark as local_spark
from include.local.machine import ROOT, VENV
from include.local.process import free_port, running_program
from include.local.spark import LocalSpark
from spark_jobs.spark.workers import FEW_VARIABLE
from tests.conftest import yaml_of
from tests.helpers import secured_broker
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.reading import consume
from tests.helpers.secret_search import CommandLines, holding

pytestmark = pytest.mark.integration

MARKER = f"m4rk{secrets.token_hex(6)}"
# With what has to be escaped in JSON, in Python and in Java's properties.
PASSWORD, PASSPHRASE = f'se"cret\\ {MARKER} word', f"phrase-{MARKER}"
# Of others than Kafka, as deployments give them to the processes of tasks.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": f"aws-id-{MARKER}",
    "AWS_SECRET_ACCESS_KEY": f"aws-{MARKER}",
    "AWS_SESSION_TOKEN": f"aws-token-{MARKER}",
    "AZURE_STORAGE_ACCOUNT_KEY": f"azure-{MARKER}",
    "PAIRING_ALERT_URL": f"http://127.0.0.1:1/{MARKER}",
    "AIRFLOW__CORE__FERNET_KEY": f"fernet-{MARKER}",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql://airflow:{MARKER}@127.0.0.1:1/airflow",
}
WHO = "User:pairing"
REPLAYED = ("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z")
CALLS_AT = 1_577_840_400_000
# All that the JVM knows of Hadoop, nothing left out, and of Spark: what the environment says of clouds, Spark would copy there.
CONFIGURATION = """
from spark_jobs.spark.session import spark_session
context = spark_session("configuration", "calls").sparkContext
written = context._jvm.java.io.StringWriter()
context._jsc.hadoopConfiguration().writeXml(written)
print(written.toString(), context.getConf().getAll())
"""


@pytest.fixture(scope="module")
def own_password():
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(secured_broker, "PASSWORD", PASSWORD)
        yield


certificates = secured_broker.certificates


@pytest.fixture(scope="module")
def broker(own_password, certificates, tmp_path_factory):
    yield from secured_broker.running_broker(certificates, tmp_path_factory)


@pytest.fixture
def login(broker, certificates, tmp_path):
    """The extra of kafka_default: a password, and a client's certificate with its encrypted key as text, which has a marker, too."""
    key = tmp_path / "encrypted.key"
    encrypt = ["openssl", "pkey", "-in", "client.key", "-aes256", "-passout", f"pass:{PASSPHRASE}", "-out", str(key)]
    subprocess.run(encrypt, cwd=certificates, check=True, capture_output=True)
    text = key.read_text()
    key.unlink()
    return secured_broker.scram_login(broker, certificates) | {
        "ssl.certificate.pem": (certificates / "client.pem").read_text(),
        "ssl.key.pem": text,
        "ssl.key.password": PASSPHRASE,
    }


@pytest.fixture
def written(tmp_path):
    """The folder of everything that is written, temporary files included."""
    for name in ("events", "spark", "tmp", "pages"):
        (tmp_path / "written" / name).mkdir(parents=True)
    return tmp_path / "written"


@pytest.fixture
def event_log(written):
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{written}/events",
        "spark.eventLog.compress": "false",
        "spark.local.dir": f"{written}/spark",
    }


@pytest.fixture
def on_a_server(written, event_log, monkeypatch):
    """Jobs are clients of a Spark Connect server, which was started with the same secrets around it."""
    monkeypatch.setattr(local_spark, "SETTINGS", local_spark.SETTINGS | event_log)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with LocalSpark(written / "server", free_port()) as server:
        # Spark copies these into its Hadoop configuration.
        around = running_program(written / "server", "server").environ()
        assert not [name for name in around if name in ENVIRONMENT and name.startswith(("AWS_", "AZURE_"))]
        yield {REMOTE_VARIABLE: server.url}


@pytest.fixture
def by_themselves(event_log):
    """Each job starts a Spark of its own, as spark-submit has it."""
    settings = " ".join(f"--conf {name}={value}" for name, value in event_log.items())
    return {"PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell"}


class Guarded(Jobs):
    """Jobs that log in, of which everything that they write is below one folder."""

    def __init__(self, pipeline, settings, written, environment):
        super().__init__(yaml_of(pipeline, written), pipeline, "", "", written / "warehouse")
        self.environment.pop(REMOTE_VARIABLE)
        self.environment |= ENVIRONMENT | {"TMPDIR": str(written / "tmp"), "PAIRING_OUTCOME": str(written / "outcome.json")}
        self.environment |= environment
        self.settings = settings
        self.log_in()

    def log_in(self, **changes):
        """With other settings, their dots written as underscores, than the right ones."""
        given = {name.replace("_", "."): value for name, value in changes.items()}
        # The client asks again for as long as it may.
        self.patience_s = 3.0 if "sasl_password" in changes else None
        self.environment["PAIRING_KAFKA"] = json.dumps(self.settings | given)

    def fail(self, job, saying, *arguments):
        """Runs the job, which has to fail with a line that has these words."""
        running = self.start(job, *arguments)
        assert running.wait() == 1, running.told()
        line = running.told().splitlines()[-1]
        assert line.startswith("error: ") and saying in line, running.told()
        assert json.loads(Path(self.environment["PAIRING_OUTCOME"]).read_text())["error"] == line.removeprefix("error: ")


def call(send, user):
    send("a", user, CALLS_AT, 1)
    send("m", user, CALLS_AT + 50, 2)


def refusals(jobs):
    """Secrets that are wrong, and in the wrong place. Nobody is asked by most of them."""
    jobs.log_in(sasl_password=f"wrong-{MARKER}")
    jobs.fail("land_events", "uthentication failed")
    jobs.log_in(ssl_key_password=f"wrong-{MARKER}")
    jobs.fail("land_events", "refused by the client: ")
    for setting in ("debug", "sasl_mechanism", "security_protocol", "ssl_key_pem"):
        jobs.log_in(**{setting: f"x-{MARKER}"})
        jobs.fail("land_events", "refused by the client: ")
    jobs.environment["PAIRING_KAFKA"] = f'{{"sasl.password": "{MARKER}'
    jobs.fail("land_events", "PAIRING_KAFKA is not JSON")
    jobs.log_in()


def one_batch(jobs, send, bootstrap):
    """The four jobs, the first of which fails in a worker before."""
    rights, pipeline = documented(jobs.pipeline), jobs.pipeline
    read = f"--operation Read --topic {pipeline.left.topic}"
    grant(bootstrap, WHO, [right.replace("Read", "Describe") if right == read else right for right in rights])
    call(send, "u1")
    # A worker raises it, so Spark tells of it, too.
    jobs.fail("land_events", read)
    grant(bootstrap, WHO, rights)
    for job in JOBS:
        jobs.run(job)


def everything(jobs, send, bootstrap):
    """All jobs on two batches."""
    one_batch(jobs, send, bootstrap)
    call(send, "u2")
    for job in JOBS:
        jobs.run(job)
    jobs.run("replay_late")
    jobs.run("replay_interval", "--window-start", REPLAYED[0], "--window-end", REPLAYED[1])
    jobs.run("rewind", "--to-batch", "1", "--yes")
    for job in (*JOBS, "reconcile", "maintain_tables"):
        jobs.run(job)
    jobs.run("explain_pair", "u1", "v", "--html", str(jobs.file.parent / "pages" / "story.html"))
    users = {message["value"]["user1"] for message in consume(bootstrap, jobs.pipeline.output_topic) if message["value"]}
    assert users == {"u1", "u2"}


def damage(jobs, send):
    """A batch that waits for its report, and a table that nobody can read: every job that reads it, or looks after it, fails."""
    call(send, "u3")
    jobs.run("land_events")
    jobs.run("pair_events")
    jobs.log_in(sasl_password=f"wrong-{MARKER}")
    jobs.fail("publish_compounds", "uthentication failed")
    jobs.log_in()
    jobs.run("publish_compounds")
    break_files(jobs, "compound_events")
    failing = {
        "report_quality": [],
        "replay_interval": ["--window-start", REPLAYED[0], "--window-end", REPLAYED[1]],
        "rewind": ["--to-batch", "1", "--yes"],
        "explain_pair": ["u1", "v"],
        "reconcile": [],
    }
    for job, arguments in failing.items():
        assert_fails(jobs, job, *arguments)
    break_files(jobs, "batch_ledger")
    assert_fails(jobs, "maintain_tables")


def break_files(jobs, table):
    for uri in DeltaTable(f"{jobs.warehouse}/{jobs.pipeline.name}/{table}").file_uris():
        Path(uri.removeprefix("file://")).write_bytes(b"PAR1 it is none")


def assert_fails(jobs, job, *arguments):
    running = jobs.start(job, *arguments)
    assert running.wait() == 1 and running.told().splitlines()[-1].startswith("error: "), (job, running.told())


def assert_nowhere(written, login, lines):
    events = [path for path in (written / "events").rglob("*") if path.is_file()]
    # Else nothing would have been looked at.
    assert any(b"MapInArrow" in path.read_bytes() for path in events), events
    assert lines.seen > 1_000 and not lines.found
    key = login["ssl.key.pem"].splitlines()[3]
    encoded = base64.b64encode(PASSWORD.encode()).decode()[4:-4]
    found = {marker: holding(written, marker) for marker in (MARKER, key, encoded)}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    ("way", "work"),
    [
        ("on_a_server", one_batch),
        pytest.param("on_a_server", everything, marks=pytest.mark.long),
        pytest.param("by_themselves", everything, marks=pytest.mark.long),
    ],
)
def test_no_secret_is_written_said_or_on_a_command_line(way, work, pipeline, broker, send, login, written, request):
    with CommandLines(MARKER) as lines:
        jobs = Guarded(pipeline, login, written, request.getfixturevalue(way))
        refusals(jobs)
        work(jobs, send, broker.bootstrap)
        damage(jobs, send)
    assert_nowhere(written, login, lines)


@pytest.mark.long
def test_no_secret_is_written_by_a_job_with_a_spark_of_its_own(pipeline, broker, send, login, written, by_themselves):
    """The core of the long one: what lands, and fails in a worker."""
    grant(broker.bootstrap, WHO, documented(pipeline))
    with CommandLines(MARKER) as lines:
        jobs = Guarded(pipeline, login, written, by_themselves)
        jobs.environment[FEW_VARIABLE] = "0"
        call(send, "u1")
        jobs.run("land_events")
        grant(broker.bootstrap, WHO, [right for right in documented(pipeline) if pipeline.left.topic not in right])
        grant(broker.bootstrap, WHO, [*documented(pipeline)[1:], f"--operation Describe --topic {pipeline.left.topic}"])
        call(send, "u2")
        jobs.run("pair_events")
        jobs.fail("land_events", f"--operation Read --topic {pipeline.left.topic}")
        program = [str(VENV / "bin" / "python"), "-c", CONFIGURATION]
        told = subprocess.run(program, env=jobs.environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "fs.s3a.threads.max" in told and MARKER not in told
    assert_nowhere(written, login, lines)
