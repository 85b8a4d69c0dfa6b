"""What the linter cannot see in template.yaml, and AWS would tell only at deploy or at night."""

from __future__ import annotations

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
ROLES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::IAM::Role"}


def mappings() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, event["Properties"])
        for name, properties in FUNCTIONS.items()
        for event in properties.get("Events", {}).values()
        if event["Type"] == "SQS"
    ]


def statements(role: str) -> list[dict[str, Any]]:
    return [statement for policy in ROLES[role]["Policies"] for statement in policy["PolicyDocument"]["Statement"]]


def queue_of(mapping: dict[str, Any]) -> str:
    return str(mapping["Queue"]["Fn::GetAtt"]).removesuffix(".Arn")


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_a_batch_is_not_handed_out_again_while_its_function_may_hold_it(function: str, mapping: dict[str, Any]) -> None:
    assert QUEUES[queue_of(mapping)]["VisibilityTimeout"] >= 6 * FUNCTIONS[function]["Timeout"]


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_one_bad_message_does_not_hold_back_its_neighbours(function: str, mapping: dict[str, Any]) -> None:
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    redrive = QUEUES[queue_of(mapping)]["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": "DeadLetterQueue.Arn"}
    assert QUEUES["DeadLetterQueue"]["MessageRetentionPeriod"] >= QUEUES[queue_of(mapping)]["MessageRetentionPeriod"]


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_concurrency_is_bounded_at_two_or_more(function: str, mapping: dict[str, Any]) -> None:
    parameter = TEMPLATE["Parameters"][mapping["ScalingConfig"]["MaximumConcurrency"]["Ref"]]
    assert parameter["MinValue"] == 2
    assert parameter["Default"] >= 2


@pytest.mark.parametrize(("function", "mapping"), mappings())
def test_a_function_that_consumes_and_publishes_may_follow_itself(function: str, mapping: dict[str, Any]) -> None:
    assert FUNCTIONS[function]["RecursiveLoop"] == "Allow"


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
        if key in resource.get("Properties", {})
    ]
    assert not fixed


@pytest.mark.parametrize("layer", ["DependenciesLayer", "RuntimeLayer"])
def test_a_layer_is_built_by_its_own_recipe(layer: str) -> None:
    resource = RESOURCES[layer]
    folder = ROOT / resource["Metadata"].get("ContextPath", resource["Properties"]["ContentUri"])
    assert resource["Metadata"]["BuildMethod"] == "makefile"
    assert f"\nbuild-{layer}:" in (folder / "Makefile").read_text()
    assert "--invalidation-mode unchecked-hash" in (folder / "Makefile").read_text()
