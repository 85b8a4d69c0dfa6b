"""What the linter cannot see in template.yaml, and AWS would tell only at deploy or at night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


class Template(yaml.SafeLoader):
    """Reads `!Ref x` as {"Ref": x} and every other short form as {"Fn::Name": value}."""


def short_form(loader: Template, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


Template.add_multi_constructor("!", short_form)
TEMPLATE: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), Loader=Template)
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Serverless::Function"}
QUEUES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::SQS::Queue"}
NOTHING = {"Ref": "AWS::NoValue"}
ROLES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::IAM::Role"}


def mappings() -> list[tuple[str, dict[str, Any]]]:
    """Function and mapping, whether it is among the function's events or a resource of its own."""
    events = [(name, event) for name, properties in FUNCTIONS.items() for event in properties.get("Events", {}).values()]
    alone = [resource["Properties"] for resource in RESOURCES.values() if resource["Type"] == "AWS::Lambda::EventSourceMapping"]
    return [(name, event["Properties"]) for name, event in events if event["Type"] == "SQS"] + [
        (mapping["FunctionName"]["Ref"], {**mapping, "Queue": mapping["EventSourceArn"]}) for mapping in alone
    ]


def statements(role: str) -> list[dict[str, Any]]:
    """With those that depend on a condition."""
    found = [statement for policy in ROLES[role]["Policies"] for statement in policy["PolicyDocument"]["Statement"]]
    return [one for statement in found for one in statement.get("Fn::If", [None, statement])[1:] if one != NOTHING]


def queue_of(mapping: dict[str, Any]) -> str:
    return str(mapping["Queue"]["Fn::GetAtt"]).removesuffix(".Arn")


def is_fifo(queue: str) -> bool:
    return bool(QUEUES[queue].get("FifoQueue", False))


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_a_batch_is_not_handed_out_again_while_its_function_may_hold_it(function: str, mapping: dict[str, Any]) -> None:
    assert QUEUES[queue_of(mapping)]["VisibilityTimeout"] >= 6 * FUNCTIONS[function]["Timeout"]


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_one_bad_message_does_not_hold_back_its_neighbours(function: str, mapping: dict[str, Any]) -> None:
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    redrive = QUEUES[queue_of(mapping)]["RedrivePolicy"]
    dead_letters = redrive["deadLetterTargetArn"]["Fn::GetAtt"].removesuffix(".Arn")
    assert is_fifo(dead_letters) is is_fifo(queue_of(mapping))
    assert QUEUES[dead_letters]["MessageRetentionPeriod"] >= QUEUES[queue_of(mapping)]["MessageRetentionPeriod"]
    largest = 10 if is_fifo(queue_of(mapping)) else 1
    assert redrive["maxReceiveCount"] > largest, "what waits behind others of its group is no misfit"


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_concurrency_is_bounded_at_two_or_more(function: str, mapping: dict[str, Any]) -> None:
    parameter = TEMPLATE["Parameters"][mapping["ScalingConfig"]["MaximumConcurrency"]["Ref"]]
    assert parameter["MinValue"] == 2
    assert parameter["Default"] >= 2


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_a_function_that_consumes_and_publishes_may_follow_itself(function: str, mapping: dict[str, Any]) -> None:
    assert FUNCTIONS[function]["RecursiveLoop"] == "Allow"


def test_what_keeps_order_is_there_only_if_a_queue_is_named() -> None:
    conditional = {name for name, resource in RESOURCES.items() if resource.get("Condition") == "KeepsOrder"}
    assert conditional == {"FifoQueue", "FifoDeadLetterQueue", "TimersQueue", "FifoMapping", "TimersMapping"}
    assert not is_fifo("TimersQueue")
    variables = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    for name in ("RUNLANE_QUEUE_URLS", "RUNLANE_MESSAGE_GROUPS", "RUNLANE_TIMERS_QUEUE_URL"):
        assert variables[name]["Fn::If"][0] == "KeepsOrder"
        assert variables[name]["Fn::If"][2] == NOTHING
    for part in ("RUNLANE_QUEUE_URLS", "RUNLANE_MESSAGE_GROUPS"):
        assert set(json.loads(variables[part]["Fn::If"][1]["Fn::Sub"])) == {"${OrderedQueue}"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_may_send_wherever_it_publishes_and_receives_only_where_it_is_mapped(function: str) -> None:
    allowed: dict[str, set[str]] = {"sqs:SendMessage": set(), "sqs:ReceiveMessage": set(), "sqs:ChangeMessageVisibility": set()}
    for statement in statements(f"{function}Role"):
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        for action in allowed:
            if action in statement["Action"]:
                allowed[action] |= {str(resource.get("Fn::GetAtt")).removesuffix(".Arn") for resource in resources}
    assert allowed["sqs:SendMessage"] == {"Queue", "FifoQueue", "TimersQueue"}
    received = {queue_of(mapping) for owner, mapping in mappings() if owner == function}
    assert allowed["sqs:ReceiveMessage"] == received
    assert allowed["sqs:ChangeMessageVisibility"] == {queue for queue in received if is_fifo(queue)}


def test_maintenance_ticks_each_minute_and_ends_before_the_next() -> None:
    schedule = FUNCTIONS["Maintenance"]["Events"]["EveryMinute"]["Properties"]["Schedule"]
    assert schedule == "rate(1 minute)"
    assert FUNCTIONS["Maintenance"]["Timeout"] <= 60


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_is_where_the_template_says_and_does_not_hide_the_application(function: str) -> None:
    module, name = FUNCTIONS[function]["Handler"].rsplit(".", 1)
    source = ROOT / TEMPLATE["Globals"]["Function"]["CodeUri"] / f"{module.replace('.', '/')}.py"
    assert f"def {name}(event" in source.read_text()
    assert module.split(".")[0] not in {"app", "runlane"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_has_a_role_and_a_log_group_of_its_own(function: str) -> None:
    assert FUNCTIONS[function]["Role"] == {"Fn::GetAtt": f"{function}Role.Arn"}
    assert FUNCTIONS[function]["LoggingConfig"]["LogGroup"] == {"Ref": f"{function}Logs"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_names_the_one_thing_each_action_is_for(role: str) -> None:
    for statement in statements(role):
        assert statement["Resource"] != "*"
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert not [action for action in actions if action.endswith("*")]


def test_a_function_is_given_its_secret_by_name_and_only_its_own() -> None:
    for function, properties in FUNCTIONS.items():
        readable = [s["Resource"] for s in statements(f"{function}Role") if s["Action"] == "secretsmanager:GetSecretValue"]
        assert readable == [properties["Environment"]["Variables"]["RUNLANE_DATABASE_SECRET_ARN"]]


def test_no_resource_has_a_fixed_name() -> None:
    fixed = [
        (name, key)
        for name, resource in RESOURCES.items()
        for key in ("FunctionName", "QueueName", "RoleName", "LayerName", "LogGroupName", "ManagedPolicyName")
        # A mapping refers to its function by name.
        if key in resource.get("Properties", {}) and resource["Type"] != "AWS::Lambda::EventSourceMapping"
    ]
    assert not fixed


@pytest.mark.parametrize("layer", ["DependenciesLayer", "RuntimeLayer"])
def test_a_layer_is_built_by_its_own_recipe(layer: str) -> None:
    resource = RESOURCES[layer]
    folder = ROOT / resource["Metadata"].get("ContextPath", resource["Properties"]["ContentUri"])
    assert resource["Metadata"]["BuildMethod"] == "makefile"
    assert f"\nbuild-{layer}:" in (folder / "Makefile").read_text()
    assert "--invalidation-mode unchecked-hash" in (folder / "Makefile").read_text()
