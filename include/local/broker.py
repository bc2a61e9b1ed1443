"""One real Kafka broker (KRaft) on this machine, on loopback only: `python -m include.local.broker start|stop|status`.

include/local/ivy.xml names its jars. It keeps its topics in its folder, so it may be killed and started again, also on another port. Tests start
others beside it, each with its own folder and port.
"""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from include.local.machine import JARS, SetupError, console_logging, demo_folder, java, project_environment
from include.local.process import (
    LocalServer,
    check_port,
    command_line,
    free_port,
    start_program,
    stop_programs,
)

FOLDER = demo_folder("broker")
DEFAULT_PORT = 9092

# Kafka warns of each start of its controller that it is one.
LOGGING = f"""\
{console_logging("warn", "%d %p %c{1}: %m%n%ex{short}")}\
appender.stderr.filter.start.type = StringMatchFilter
appender.stderr.filter.start.text = Performing controller activation.
appender.stderr.filter.start.onMatch = DENY
appender.stderr.filter.start.onMismatch = NEUTRAL
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = error
"""


class LocalBroker(LocalServer):
    """A broker with its data in `folder`, listening on 127.0.0.1:`port`."""

    name = "kafka"
    # Of its JVM.
    options: tuple[str, ...] = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData")

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def where(self) -> str:
        """Its address; a running broker may have another port than `port`."""
        return f"on 127.0.0.1:{self.running_port() or self.port}"

    def check(self) -> None:
        """Raises SetupError if `start` would fail: the port is taken, or the broker runs on another one."""
        if not self.is_running():
            check_port(self.port, "KAFKA_PORT")
        elif self.running_port() != self.port:
            raise SetupError(
                f"the broker runs on port {self.running_port()}, not {self.port}: make stop, then start it again"
            )

    def start(self) -> bool:
        """Starts the broker and waits until it answers; False if it ran already. Raises SetupError."""
        self.check()
        running = self.is_running()
        if not running:
            self._configure()
            self._launch()
        self._wait_until_it_answers()
        return not running

    def kill(self) -> None:
        """Ends the broker without warning, like a power cut (for tests)."""
        stop_programs(self.folder, patience_s=0)

    def running_port(self) -> int | None:
        """The port in the broker's settings, None before the first start."""
        settings = self.folder / "server.properties"
        found = re.search(r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+)", settings.read_text()) if settings.is_file() else None
        return int(found[1]) if found else None

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        controller = f"127.0.0.1:{free_port()}"
        settings = {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            # A misspelt name is an error and creates no topic.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            # After a crash the broker is accepted again only when its old session has timed out.
            "broker.heartbeat.interval.ms": 1000,
            "broker.session.timeout.ms": 2500,
            # Each of these costs processor time while nothing runs: by default the controller writes a record of nothing twice a second, and
            # eleven threads look for requests.
            "metadata.max.idle.interval.ms": 5000,
            "num.io.threads": 3,
            "num.network.threads": 2,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }
        (self.folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.folder / "log4j2.properties").write_text(LOGGING)

    def _command(self, program: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [java(), *self.options, logging, "-cp", str(JARS / "broker" / "*"), program, *arguments]

    def _launch(self) -> None:
        settings = str(self.folder / "server.properties")
        if not (self.folder / "data" / "meta.properties").is_file():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            options = ["--ignore-formatted", f"--cluster-id={cluster}", f"--config={settings}"]
            tool = self._command("kafka.tools.StorageTool", "format", *options)
            done = subprocess.run(tool, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode:
                # The first line of an exception says what is wrong.
                cause = ((done.stderr + done.stdout).strip().splitlines() or ["no message"])[0]
                raise SetupError(f"the broker cannot prepare its folder ({cause}): delete {self.folder}, or make clean")
        start_program(self.folder, self.name, self._command("kafka.Kafka", settings), project_environment())

    def _wait_until_it_answers(self) -> None:
        signs = ("ERROR", "FATAL", "Exception")
        self.wait_until(
            lambda: _answers(self.bootstrap), "the broker", self.name, signs, f"does not answer on {self.bootstrap}"
        )


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    with socket.socket() as probe:
        # A Kafka client waits between two tries to connect; this does not.
        if probe.connect_ex((host, int(port))):
            return False
    try:
        return bool(admin_client(bootstrap).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def admin_client(bootstrap: str) -> AdminClient:
    """An admin client that logs no connection errors: callers report them."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topics(bootstrap: str, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
    """Creates the topics (name to number of partitions) that do not exist yet; raises SetupError if one differs."""
    admin = admin_client(bootstrap)
    existing = admin.list_topics(timeout=20).topics
    for name, partitions in topics.items():
        found = len(existing[name].partitions) if name in existing else partitions
        if found != partitions:
            raise SetupError(f"topic {name} has {found} partitions, not {partitions}: delete it, or make clean")
    missing = [
        NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        for name, partitions in topics.items()
        if name not in existing
    ]
    for created in admin.create_topics(missing).values() if missing else ():
        try:
            created.result(timeout=20)
        except KafkaException as error:
            # Another program created it at the same moment.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


if __name__ == "__main__":
    sys.exit(command_line("Kafka", "KAFKA_PORT", DEFAULT_PORT, lambda port: LocalBroker(FOLDER, port)))
