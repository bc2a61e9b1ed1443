"""One real Kafka broker (KRaft) on this machine, on loopback only: `python -m include.local_broker start|stop|status`.

Its jars come by include/ivy.xml. It keeps its topics in its folder, so it may be killed and started again, also on another
port. The tests start others beside it, each with a folder and a port of its own.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from include.local_machine import JARS, LOCAL, SetupError, java, project_environment
from include.local_process import (
    check_port,
    free_port,
    last_lines,
    port_setting,
    running_program,
    start_program,
    stop_programs,
)

FOLDER = LOCAL / "broker"
DEFAULT_PORT = 9092
READY_WITHIN_S = 60.0

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n%ex{short}
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = error
"""


class LocalBroker:
    """A broker with its data in `folder`, listening on 127.0.0.1:`port`. As a context manager it runs inside the block."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LocalBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def is_running(self) -> bool:
        """Whether the broker of this folder lives, on whatever port."""
        return running_program(self.folder, "kafka") is not None

    def check(self) -> None:
        """Raises SetupError if `start` could not: the port is taken, or the broker runs on another one."""
        if not self.is_running():
            check_port(self.port, "KAFKA_PORT")
        elif self.running_port() != self.port:
            raise SetupError(
                f"the broker runs on port {self.running_port()}, not {self.port}: make stop, then start it again"
            )

    def start(self) -> bool:
        """Returns when the broker answers: True if it was started, False if it ran already. Raises SetupError."""
        self.check()
        running = self.is_running()
        if not running:
            self._configure()
            self._launch()
        self._wait_until_it_answers()
        return not running

    def stop(self) -> bool:
        """Ends the broker in good order, its data stay; False if it did not run."""
        return stop_programs(self.folder)

    def kill(self) -> None:
        """Ends the broker as a power cut would (for tests)."""
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
            # A misspelt topic is an error, not a new topic.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            # After a crash the broker may come back only when its old session has run out.
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 2000,
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
        return [java(), "-Xmx512m", "-XX:+UseSerialGC", logging, "-cp", str(JARS / "broker" / "*"), program, *arguments]

    def _launch(self) -> None:
        settings = str(self.folder / "server.properties")
        if not (self.folder / "data" / "meta.properties").is_file():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            options = ["--ignore-formatted", f"--cluster-id={cluster}", f"--config={settings}"]
            tool = self._command("kafka.tools.StorageTool", "format", *options)
            done = subprocess.run(tool, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode:
                cause = ((done.stderr + done.stdout).strip().splitlines() or ["no message"])[-1]
                raise SetupError(f"the broker cannot prepare its folder ({cause}): delete {self.folder}, or make clean")
        start_program(self.folder, "kafka", self._command("kafka.Kafka", settings), project_environment())

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            if not self.is_running():
                cause = " / ".join(last_lines(self.folder, "kafka", 2, containing=("ERROR", "FATAL", "Exception")))
                raise SetupError(f"the broker ended while it started ({cause[:300]}): see {self.folder / 'kafka.log'}")
            if _answers(self.bootstrap):
                return
            time.sleep(0.1)
        raise SetupError(f"the broker does not answer on {self.bootstrap}: see {self.folder / 'kafka.log'}, then make stop")


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    with socket.socket() as probe:
        # A Kafka client that finds nobody waits before it tries again; this does not.
        if probe.connect_ex((host, int(port))):
            return False
    try:
        return bool(admin_client(bootstrap).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def admin_client(bootstrap: str) -> AdminClient:
    """An admin client that keeps its connection errors to itself: callers report them in their own words."""
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
        NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        for name, partitions in topics.items()
        if name not in existing
    ]
    for created in admin.create_topics(missing).values() if missing else ():
        try:
            created.result(timeout=20)
        except KafkaException as error:
            # Somebody else was quicker: what was wanted is there.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def main() -> int:
    """Entry of the command; 0 when done, 1 with one line when not (status: 1 when it does not run)."""
    parser = argparse.ArgumentParser(prog="python -m include.local_broker", description="One Kafka broker on this machine.")
    parser.add_argument("action", choices=["start", "stop", "status"])
    parser.add_argument("--port", default=os.environ.get("KAFKA_PORT"), help=f"default: KAFKA_PORT, or {DEFAULT_PORT}")
    arguments = parser.parse_args()
    try:
        broker = LocalBroker(FOLDER, port_setting(arguments.port, DEFAULT_PORT, "KAFKA_PORT"))
        if arguments.action == "start":
            print(f"Kafka {'started' if broker.start() else 'runs already'} on {broker.bootstrap}")
        elif arguments.action == "stop":
            print("Kafka stopped" if broker.stop() else "Kafka did not run")
        else:
            running = broker.is_running()
            print(f"Kafka runs on 127.0.0.1:{broker.running_port()}" if running else "Kafka does not run")
            return 0 if running else 1
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
