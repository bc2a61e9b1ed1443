"""The rights that docs/deployment.md lists, and what stands in for kafka-acls.sh, which does not come with the jars of a broker."""

from __future__ import annotations

import argparse
import re
import shlex
import time

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.helpers.timeline import CALLS, ROOT

_BLOCK = re.compile(r"^```bash rights\n(.*?)^```$", re.M | re.S)
_THINGS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional_id": ResourceType.TRANSACTIONAL_ID}
# There is one, by this name.
_CLUSTER = "kafka-cluster"


def documented(pipeline=CALLS, principal="User:pairing"):
    """The options of each command, from `--operation` on, for a pipeline: `--operation Read --topic analyticsTopic`."""
    (block,) = _BLOCK.findall((ROOT / "docs" / "deployment.md").read_text())
    words = {
        "analyticsTopic": pipeline.left.topic,
        "metricsTopic": pipeline.right.topic,
        "outputTopic": pipeline.output_topic,
        "calls.publisher": f"{pipeline.name}.publisher",
        "calls.lag": pipeline.consumer_group or "none",
    }
    start = "kafka-acls.sh --bootstrap-server ADDRESS --add --allow-principal User:pairing "
    commands = block.splitlines()
    assert commands and all(command.startswith(start) for command in commands)
    filled = re.compile("|".join(map(re.escape, words)))
    return [filled.sub(lambda found: words[found[0]], command.removeprefix(start)) for command in commands]


def binding(principal, options):
    """The rule of one command's options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--operation", required=True)
    parser.add_argument("--resource-pattern-type", default="literal")
    for thing in _THINGS:
        parser.add_argument(f"--{thing.replace('_', '-')}")
    parser.add_argument("--cluster", action="store_const", const=_CLUSTER)
    given = vars(parser.parse_args(shlex.split(options)))
    ((kind, name),) = (
        (kind, given[thing]) for thing, kind in (_THINGS | {"cluster": ResourceType.BROKER}).items() if given[thing]
    )
    operation = AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", given["operation"]).upper()]
    pattern = ResourcePatternType[given["resource_pattern_type"].upper()]
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def grant(bootstrap, principal, commands):
    """Gives the user exactly these rights, and returns when the broker goes by them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    mine = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY, AclPermissionType.ANY
    )
    wanted = {binding(principal, command) for command in commands}
    has = set(admin.describe_acls(mine).result(timeout=20))
    if gone := [as_filter(rule) for rule in has - wanted]:
        for answer in admin.delete_acls(gone).values():
            answer.result(timeout=20)
    if new := list(wanted - has):
        for answer in admin.create_acls(new).values():
            answer.result(timeout=20)
    deadline = time.monotonic() + 20
    while set(admin.describe_acls(mine).result(timeout=20)) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def as_filter(rule):
    """What finds just this rule."""
    return AclBindingFilter(
        rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation, rule.permission_type
    )


def add(arguments):
    """kafka-acls.sh --bootstrap-server … --add --allow-principal … and a right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", action="store_true", required=True)
    for option in ("--bootstrap-server", "--allow-principal"):
        parser.add_argument(option, required=True)
    given, right = parser.parse_known_args(arguments)
    admin = AdminClient({"bootstrap.servers": given.bootstrap_server})
    (answer,) = admin.create_acls([binding(given.allow_principal, shlex.join(right))]).values()
    answer.result(timeout=20)
