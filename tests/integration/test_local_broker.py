"""The local broker is a real one: it keeps what it confirmed, and tells who asks wrongly."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from include.local.broker import LocalBroker, admin_client, create_topics
from include.local.machine import SetupError
from include.local.process import free_port, processes_of

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_broker_survives_a_power_cut_and_creates_topics_once(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "broker", free_port()) as broker:
        for _ in range(2):
            create_topics(broker.bootstrap, {"calls": 4}, {"retention.ms": "-1"})
        with pytest.raises(SetupError, match="topic calls has 4 partitions, not 3"):
            create_topics(broker.bootstrap, {"calls": 3})
        misspelt = admin_client(broker.bootstrap).list_topics("misspelt", timeout=10).topics["misspelt"]
        assert misspelt.error is not None
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
        producer.produce("calls", b"kept", partition=2)
        assert producer.flush(20) == 0
        assert broker.start() is False
        with pytest.raises(SetupError, match=rf"runs on port {broker.port}.*make stop"):
            LocalBroker(broker.folder, free_port()).start()
        with pytest.raises(SetupError, match=rf"port {broker.port} is taken .*KAFKA_PORT="):
            LocalBroker(tmp_path / "second", broker.port).start()
        broker.kill()
        assert not broker.is_running()
        assert broker.start() is True
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["calls"])
        message = consumer.poll(20)
        consumer.close()
        assert message is not None
        assert (message.value(), message.partition()) == (b"kept", 2)
        listening = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in processes_of(broker.folder)
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
    assert processes_of(broker.folder) == []
