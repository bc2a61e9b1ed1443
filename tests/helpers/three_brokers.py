"""Three brokers that are one cluster, each broker and controller: what topics with three replicas need, and what moves their leaders."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

import pyspark
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from include.local.broker import LocalBroker
from include.local.machine import JARS, java
from include.local.process import free_port

NUMBERS = (1, 2, 3)
_SETTINGS = {
    # Of every topic that says nothing else, those of groups and transactions included.
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    # Long enough for a slow machine, where an election would be disturbed by the next one.
    "controller.quorum.election.timeout.ms": 3_000,
    "controller.quorum.fetch.timeout.ms": 6_000,
    "broker.session.timeout.ms": 6_000,
    "replica.lag.time.max.ms": 6_000,
    # Leaders stay where a test moves them.
    "auto.leader.rebalance.enable": "false",
}


class OneOfThree(LocalBroker):
    """A broker of the cluster."""

    def __init__(self, folder: Path, number: int, cluster: ThreeBrokers) -> None:
        super().__init__(folder, free_port())
        self.number, self.cluster, self.controller = number, cluster, free_port()

    def _configure(self) -> None:
        super()._configure()
        voters = ",".join(f"{each.number}@127.0.0.1:{each.controller}" for each in self.cluster.brokers)
        more = _SETTINGS | {
            "node.id": self.number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self.controller}",
        }
        settings = self.folder / "server.properties"
        # The last of two lines of one name counts.
        with settings.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in more.items())
        if not (self.folder / "data" / "meta.properties").is_file():
            options = [f"--cluster-id={self.cluster.id}", f"--config={settings}"]
            subprocess.run(self._command("kafka.tools.StorageTool", "format", *options), check=True, capture_output=True)

    def launch(self) -> None:
        """Starts it without waiting: one alone does not answer."""
        self._configure()
        self._launch()


class ThreeBrokers:
    """As a context manager they run inside the block."""

    def __init__(self, folder: Path) -> None:
        self.id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.brokers: list[OneOfThree] = []
        self.brokers += (OneOfThree(folder / str(number), number, self) for number in NUMBERS)
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        self._java: JavaGateway | None = None

    def __enter__(self) -> ThreeBrokers:
        with ExitStack() as started:
            started.callback(self.stop)
            self.launch(*self.brokers)
            started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends them all."""
        if self._java is not None:
            self._java.shutdown()
        for broker in self.brokers:
            broker.kill()

    def launch(self, *brokers: OneOfThree) -> None:
        """Starts these and returns when all three answer as one cluster."""
        for broker in brokers:
            broker.launch()
        wait_for(lambda: len(self.admin().list_topics(timeout=5).brokers) == len(NUMBERS), "three brokers", 180)

    def admin(self) -> AdminClient:
        """A client that knows all three, silent about one that is away."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def leader(self, topic: str, partition: int) -> OneOfThree:
        """The broker that leads the partition now."""
        number = self.admin().list_topics(topic, timeout=20).topics[topic].partitions[partition].leader
        return self.brokers[number - 1]

    def wait_until_in_sync(self, topics: Collection[str], replicas: int = 3) -> None:
        """Returns when every partition of the topics has so many replicas in sync, and a leader among them."""

        def are() -> bool:
            known = self.admin().list_topics(timeout=20).topics
            # A broker hears of a new topic a moment later than the one that was asked to make it.
            parts = [part for topic in topics if topic in known for part in known[topic].partitions.values()]
            return set(topics) <= known.keys() and all(
                len(part.isrs) >= replicas and part.leader in part.isrs for part in parts
            )

        wait_for(are, f"{replicas} replicas of {', '.join(topics)} in sync")

    def move_leader(self, topic: str, partition: int) -> None:
        """Makes another replica the leader, as an operator would: the replicas in another order, then the preferred one elected."""
        admin = self.admin()
        before = admin.list_topics(topic, timeout=20).topics[topic].partitions[partition].leader
        order = [number for number in NUMBERS if number != before] + [before]
        self.reassign(topic, partition, order)
        place = TopicPartition(topic, partition)

        def is_moved() -> bool:
            # Refused for as long as the controller has not heard of the new order.
            for error in admin.elect_leaders(ElectionType.PREFERRED, [place]).result(timeout=20).values():
                if error is not None:
                    return self.leader(topic, partition).number != before
            return self.leader(topic, partition).number == order[0]

        wait_for(is_moved, f"another leader of {topic}-{partition}")

    def replicas_in_sync(self, topic: str, partition: int) -> list[int]:
        """Their numbers, ascending."""
        return sorted(self.admin().list_topics(topic, timeout=20).topics[topic].partitions[partition].isrs)

    def allow_unclean_election(self, topic: str) -> None:
        """Any replica may lead, whatever it lacks, and one is enough to write."""
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        # It has to live as long as its answer is waited for.
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(timeout=20)

    def reassign(self, topic: str, partition: int, order: list[int]) -> None:
        """Gives the partition to these brokers, the preferred leader first."""
        client = self._jvm().org.apache.kafka.clients.admin
        place = self._jvm().org.apache.kafka.common.TopicPartition(topic, partition)
        wanted = self._jvm().java.util.Optional.of(client.NewPartitionReassignment(order))
        admin = client.Admin.create({"bootstrap.servers": self.bootstrap})
        try:
            admin.alterPartitionReassignments({place: wanted}).all().get()
        finally:
            admin.close()

    def _jvm(self):
        """A JVM with Kafka's own client: confluent-kafka cannot reassign partitions."""
        if self._java is None:
            (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
            port = launch_gateway(jarpath=str(py4j), classpath=f"{JARS}/broker/*", java_path=java(), die_on_exit=True)
            self._java = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        return self._java.jvm


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Returns when the condition is true; an error of the client counts as false."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except KafkaException:
            pass
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)
