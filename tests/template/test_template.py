"""What the linter cannot see in template.yaml, and AWS would tell only at deploy or at night."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import queues
from runlane import Queue
from runlane.adapters.cloudformation.blocks import Template
from runlane.domain.retention import read_retention
from runlane.settings import Settings, variable_of

ROOT = Path(__file__).parents[2]


class Loader(yaml.SafeLoader):
    """Reads `!Ref x` as {"Ref": x} and every other short form as {"Fn::Name": value}."""


def short_form(loader: Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


Loader.add_multi_constructor("!", short_form)
TEMPLATE: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), Loader=Loader)
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Serverless::Function"}
QUEUES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::SQS::Queue"}
MAPPINGS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Lambda::EventSourceMapping"}
ALARMS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::CloudWatch::Alarm"}
ROLES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::IAM::Role"}
POLICIES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::IAM::ManagedPolicy"}
VARIABLES: dict[str, Any] = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
NOTHING = {"Ref": "AWS::NoValue"}
UNNAMED = {"NetworkPolicy"}
"""Whose resources have no name that could be given."""
SECRET = re.compile(r"password|secret|token|key", re.IGNORECASE)


def alternatives(value: Any) -> list[Any]:
    """What a value may be, whatever the conditions."""
    if isinstance(value, dict) and "Fn::If" in value:
        return [one for branch in value["Fn::If"][1:] for one in alternatives(branch)]
    return [] if value == NOTHING else [value]


def listed(value: Any) -> list[Any]:
    return [one for entry in (value if isinstance(value, list) else [value]) for one in alternatives(entry)]


def statements(role: str) -> list[dict[str, Any]]:
    """All that a role may do, under any condition, with the policies that are attached to it."""
    attached = [POLICIES[one["Ref"]]["PolicyDocument"] for one in listed(ROLES[role].get("ManagedPolicyArns", []))]
    documents = [policy["PolicyDocument"] for policy in ROLES[role]["Policies"]] + attached
    return [statement for document in documents for statement in listed(document["Statement"])]


def variables(function: str) -> dict[str, list[Any]]:
    """Every variable of a function, with what it may be."""
    merged = {**VARIABLES, **FUNCTIONS[function].get("Environment", {}).get("Variables", {})}
    return {name: alternatives(value) for name, value in merged.items()}


def attribute(value: dict[str, Any]) -> str:
    """The logical id that a `!GetAtt` names."""
    return str(value["Fn::GetAtt"]).split(".")[0]


def source(mapping: str) -> str:
    return attribute(MAPPINGS[mapping]["EventSourceArn"])


def consumer(mapping: str) -> str:
    """The function that it invokes, itself or by an alias."""
    invoked = alternatives(MAPPINGS[mapping]["FunctionName"])
    (function,) = {RESOURCES[one["Ref"]].get("Properties", {}).get("FunctionName", one)["Ref"] for one in invoked}
    return str(function)


def is_fifo(queue: str) -> bool:
    return bool(QUEUES[queue].get("FifoQueue", False))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_batch_is_not_handed_out_again_while_its_function_may_hold_it(mapping: str) -> None:
    window = TEMPLATE["Parameters"]["BatchWindowSeconds"]["MaxValue"]
    assert QUEUES[source(mapping)]["VisibilityTimeout"] >= 6 * FUNCTIONS["Worker"]["Timeout"] + window
    assert MAPPINGS[mapping].get("MaximumBatchingWindowInSeconds") == (None if is_fifo(source(mapping)) else {"Ref": "BatchWindowSeconds"})


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_one_bad_message_does_not_hold_back_its_neighbours(mapping: str) -> None:
    assert MAPPINGS[mapping]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


@pytest.mark.parametrize("queue", [name for name in QUEUES if name.endswith("Queue")])
def test_each_queue_has_dead_letters_of_its_own_kind_that_are_kept_as_long(queue: str) -> None:
    redrive = QUEUES[queue]["RedrivePolicy"]
    dead_letters = attribute(redrive["deadLetterTargetArn"])
    assert dead_letters == queue.removesuffix("Queue") + "DeadLetters"
    assert is_fifo(dead_letters) is is_fifo(queue)
    assert QUEUES[dead_letters]["MessageRetentionPeriod"] >= QUEUES[queue]["MessageRetentionPeriod"]
    largest = 10 if is_fifo(queue) else 1
    assert redrive["maxReceiveCount"] > largest, "what waits behind others of its group is no misfit"


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queue_is_encrypted_and_those_of_dead_letters_have_an_alarm(queue: str) -> None:
    assert QUEUES[queue]["SqsManagedSseEnabled"] is True
    watched = [alarm["MetricName"] for alarm in ALARMS.values() for one in alarm["Dimensions"] if f"{queue}.QueueName" in str(one["Value"])]
    assert watched == ["ApproximateNumberOfMessagesVisible" if "DeadLetters" in queue else "ApproximateAgeOfOldestMessage"]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_concurrency_is_bounded_at_two_or_more(mapping: str) -> None:
    parameter = TEMPLATE["Parameters"][MAPPINGS[mapping]["ScalingConfig"]["MaximumConcurrency"]["Ref"]]
    assert parameter["MinValue"] == 2
    assert parameter["Default"] >= 2


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_function_that_consumes_and_publishes_may_follow_itself(mapping: str) -> None:
    assert FUNCTIONS[consumer(mapping)]["RecursiveLoop"] == "Allow"


def test_the_blocks_are_those_of_the_catalog_and_one_command_renews_them() -> None:
    """Whoever adds a queue in Python runs `runlane template --write template.yaml`."""
    shipped = Template((ROOT / "template.yaml").read_text())
    names = [name for name, value in vars(queues).items() if isinstance(value, Queue)]
    assert shipped.renewed([getattr(queues, name).name for name in names], shipped.fifo()) == shipped.text
    assert shipped.fifo(), "the shipped template shows a FIFO queue, too"


def test_every_queue_of_the_catalog_has_its_address_and_its_mapping() -> None:
    urls = json.loads(VARIABLES["RUNLANE_QUEUE_URLS"]["Fn::Sub"])
    assert {source(mapping) for mapping in MAPPINGS} == {url[2:-1] for url in urls.values()} | {
        VARIABLES["RUNLANE_TIMERS_QUEUE_URL"]["Ref"]
    }
    groups = json.loads(VARIABLES["RUNLANE_MESSAGE_GROUPS"])
    assert {name for name, url in urls.items() if is_fifo(url[2:-1])} == set(groups)
    assert not is_fifo("TimersQueue")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_may_send_wherever_it_publishes_and_receives_only_where_it_is_mapped(function: str) -> None:
    allowed: dict[str, set[str]] = {"sqs:SendMessage": set(), "sqs:ReceiveMessage": set(), "sqs:ChangeMessageVisibility": set()}
    for statement in statements(f"{function}Role"):
        for action in allowed.keys() & set(listed(statement["Action"])):
            allowed[action] |= {attribute(resource) for resource in listed(statement["Resource"])}
    received = {source(mapping) for mapping in MAPPINGS if consumer(mapping) == function}
    assert allowed["sqs:SendMessage"] == {source(mapping) for mapping in MAPPINGS}
    assert allowed["sqs:ReceiveMessage"] == received
    assert allowed["sqs:ChangeMessageVisibility"] == {queue for queue in received if is_fifo(queue)}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_variables_of_a_function_are_settings(function: str) -> None:
    named = {variable_of(field) for field in Settings.model_fields}
    assert set(variables(function)) <= named
    assert {"RUNLANE_APP", "RUNLANE_ENVIRONMENT", "RUNLANE_RETENTION", "RUNLANE_QUEUE_URLS", "DATABASE_URL"} <= set(variables(function))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_variable_holds_a_secret(function: str) -> None:
    """Whoever may see a function sees its variables. A secret is named by its ARN, which a parameter or a resource gives."""
    for name, values in variables(function).items():
        for value in values:
            text = json.dumps(value)
            assert "resolve:" not in text
            assert not re.search(r"//[^/]*:[^/]*@", text), f"{name} holds a password"
            if SECRET.search(name):
                assert name.endswith("_ARN")
    assert not [name for name, parameter in TEMPLATE["Parameters"].items() if SECRET.search(name) and not name.endswith("Arn")]


def test_the_database_is_given_without_its_login_but_by_iam() -> None:
    """With a token the user is named, with a secret it comes from the secret; both at once would be refused at start."""
    for function in ("Worker", "Maintenance"):
        assert VARIABLES["RUNLANE_DATABASE_IAM"]["Fn::If"] == ["ByIam", "1", NOTHING]
        assert VARIABLES["RUNLANE_DATABASE_SECRET_ARN"]["Fn::If"][:2] == ["ByIam", NOTHING]
        assert variables(function)["DATABASE_URL"]
    for condition, branch in zip(("ByIam", "ByIam"), VARIABLES["DATABASE_URL"]["Fn::If"][1:], strict=True):
        assert branch["Fn::If"][0] == condition
        by_iam, by_secret = branch["Fn::If"][1:]
        assert "@" in by_iam["Fn::Sub"]
        assert all("@" not in one["Fn::Sub"] for one in alternatives(by_secret))
    assert variables("Migrate")["RUNLANE_DATABASE_IAM"] == []


def test_maintenance_ticks_each_minute_and_ends_before_the_next() -> None:
    schedule = FUNCTIONS["Maintenance"]["Events"]["EveryMinute"]["Properties"]
    assert schedule["Schedule"] == "rate(1 minute)"
    assert FUNCTIONS["Maintenance"]["Timeout"] <= 60
    assert schedule["RetryPolicy"]["MaximumEventAgeInSeconds"] <= 60
    assert attribute(schedule["DeadLetterConfig"]["Arn"]) == "MaintenanceDeadLetters"
    (may_send,) = RESOURCES["MaintenanceDeadLettersPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert may_send["Principal"] == {"Service": "events.amazonaws.com"}
    assert may_send["Condition"]["ArnEquals"]["aws:SourceArn"] == {"Fn::GetAtt": "MaintenanceEveryMinute.Arn"}


def test_code_comes_after_what_it_needs_and_what_it_no_longer_needs_goes_after_it() -> None:
    before, after = RESOURCES["MigrateBefore"], RESOURCES["MigrateAfter"]
    for resource, phase in ((before, "before"), (after, "after")):
        assert resource["Type"] == "AWS::CloudFormation::CustomResource"
        assert resource["Properties"]["Phase"] == phase
        assert resource["Properties"]["ServiceToken"] == {"Fn::GetAtt": "Migrate.Arn"}
        assert resource["Properties"]["Release"] == {"Ref": "RuntimeLayer"}, "else it would not run again with new code"
        assert resource["Properties"]["ServiceTimeout"] > FUNCTIONS["Migrate"]["Timeout"]
    others = [name for name in FUNCTIONS if name != "Migrate"]
    assert all(RESOURCES[name]["DependsOn"] == "MigrateBefore" for name in others)
    assert after["DependsOn"] == others
    assert {"Ref": "WorkerAlias"} in alternatives(after["Properties"]["After"]), "the version in force is the new one by then"


def test_with_snapshots_every_mapping_invokes_the_version_that_is_published_and_else_none_is() -> None:
    version, alias = RESOURCES["WorkerVersion"], RESOURCES["WorkerAlias"]
    assert FUNCTIONS["Worker"]["SnapStart"] == {"ApplyOn": {"Fn::If": ["Snapshots", "PublishedVersions", "None"]}}
    assert TEMPLATE["Parameters"]["SnapStart"]["Default"] == "off"
    assert version["Condition"] == alias["Condition"] == "Snapshots"
    assert alias["Properties"]["FunctionVersion"] == {"Fn::GetAtt": "WorkerVersion.Version"}
    for mapping in MAPPINGS.values():
        assert mapping["FunctionName"] == {"Fn::If": ["Snapshots", {"Ref": "WorkerAlias"}, {"Ref": "Worker"}]}


def test_what_is_published_is_told_apart_by_a_description_that_lambda_takes() -> None:
    """A version is replaced when its description changes. Lambda publishes none that equals the last, so it is the function's, too."""
    told = RESOURCES["WorkerVersion"]["Properties"]["Description"]
    assert told == FUNCTIONS["Worker"]["Description"]
    text, layers = told["Fn::Sub"]
    longest = {"SnapStart": "on-" + 32 * "x", "Retention": "999999ms", "DatabaseHost": 128 * "x"} | dict.fromkeys(layers, "999999")
    parameters: dict[str, Any] = {name: TEMPLATE["Parameters"][name] for name in re.findall(r"\$\{(\w+)\}", text) if name not in layers}
    for name, parameter in parameters.items():
        values = parameter.get("AllowedValues", [parameter.get("MaxValue", longest.get(name))])
        longest[name] = max(map(str, values), key=len)
        assert "AllowedPattern" not in parameter or re.fullmatch(parameter["AllowedPattern"], longest[name])
    assert TEMPLATE["Parameters"]["DatabaseHost"]["MaxLength"] == len(longest["DatabaseHost"])
    assert len(re.sub(r"\$\{(\w+)\}", lambda found: longest[found[1]], text)) <= 256
    assert [layer["Fn::Select"][1]["Fn::Split"][1]["Ref"] for layer in layers.values()] == ["RuntimeLayer", "DependenciesLayer"]


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
    unnamed = [statement for name in UNNAMED for statement in POLICIES[name]["PolicyDocument"]["Statement"]]
    assert statements(role)
    for statement in statements(role):
        assert not [action for action in listed(statement["Action"]) if "*" in action]
        if statement not in unnamed:
            assert not [resource for resource in listed(statement["Resource"]) if "*" in json.dumps(resource)]


def test_a_function_reads_only_its_own_secret() -> None:
    for function in FUNCTIONS:
        asked = [one for name, values in variables(function).items() if name.endswith("_SECRET_ARN") for one in values]
        read = [
            resource
            for statement in statements(f"{function}Role")
            if statement["Action"] == "secretsmanager:GetSecretValue"
            for resource in listed(statement["Resource"])
        ]
        assert sorted(map(json.dumps, read)) == sorted(map(json.dumps, asked))


def test_a_proxy_reads_only_the_login_of_the_runtime() -> None:
    (statement,) = statements("DatabaseProxyRole")
    assert statement == {"Effect": "Allow", "Action": "secretsmanager:GetSecretValue", "Resource": {"Ref": "RuntimeSecret"}}


def test_a_parameter_is_described_grouped_and_bounded() -> None:
    parameters = TEMPLATE["Parameters"]
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert [name for group in groups for name in group["Parameters"]] == list(parameters)
    for name, parameter in parameters.items():
        assert len(parameter["Description"]) > 8, name
        assert parameter.keys() & {"AllowedPattern", "AllowedValues", "MinValue"} or parameter["Type"] == "CommaDelimitedList", name
        assert "AllowedPattern" not in parameter or parameter["ConstraintDescription"], name


def test_a_parameter_passes_its_own_pattern_and_what_it_stands_for_takes_it() -> None:
    for name, parameter in TEMPLATE["Parameters"].items():
        if "AllowedPattern" in parameter:
            assert re.fullmatch(parameter["AllowedPattern"], str(parameter["Default"])), name
    assert read_retention(TEMPLATE["Parameters"]["Retention"]["Default"])


def test_a_database_that_is_made_outlives_its_stack_as_a_snapshot_and_is_encrypted_and_private() -> None:
    made = [name for name, resource in RESOURCES.items() if resource["Type"].startswith("AWS::RDS::")]
    assert {RESOURCES[name]["Condition"] for name in made} == {"NewDatabase", "NewReplica"}
    cluster = RESOURCES["DatabaseCluster"]
    assert (cluster["DeletionPolicy"], cluster["UpdateReplacePolicy"]) == ("Snapshot", "Snapshot")
    assert cluster["Properties"]["StorageEncrypted"] is True
    assert RESOURCES["DatabaseProxy"]["Properties"]["RequireTLS"] is True
    assert [RESOURCES[name]["Properties"]["PubliclyAccessible"] for name in ("DatabaseInstance", "DatabaseReplica")] == [False, False]


def test_every_alarm_tells_the_topic_and_reads_a_metric_that_somebody_writes() -> None:
    target = {"Fn::If": ["Alarms", [{"Ref": "AlarmTopicArn"}], NOTHING]}
    assert all(alarm["AlarmActions"] == alarm["OKActions"] == target for alarm in ALARMS.values())
    ours = {alarm["MetricName"] for alarm in ALARMS.values() if alarm["Namespace"] == "Runlane"}
    assert ours == {"ticks", "phase_failed", "oldest_due_seconds", "tick_recover_leases", "horizon_seconds"}
    missed = ALARMS["MaintenanceMissedAlarm"]
    assert (missed["TreatMissingData"], missed["ComparisonOperator"]) == ("breaching", "LessThanThreshold")


def test_every_alarm_is_explained() -> None:
    page = (ROOT / "docs/how-to/alarms.md").read_text()
    of_queues = ("DeadLettersAlarm", "OldestMessageAlarm")
    told = {
        f"…{kind}" if name.removesuffix(kind) + "Queue" in QUEUES else name for name in ALARMS for kind in of_queues if name.endswith(kind)
    }
    told |= {name for name in ALARMS if not name.endswith(of_queues)}
    assert {name for name in told if f"`{name}`" not in page} == set()
    assert len(told) == 9


def test_the_dashboard_is_json_and_knows_every_queue() -> None:
    body = json.loads(RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])
    shown = json.dumps(body)
    assert all(f"${{{queue}.QueueName}}" in shown for queue in QUEUES if queue != "MaintenanceDeadLetters")
    assert len({(widget["x"], widget["y"]) for widget in body["widgets"]}) == len(body["widgets"])


@pytest.mark.parametrize("stage", ["dev", "staging", "prod"])
def test_a_stage_deploys_into_a_stack_and_an_environment_of_its_own_with_tags(stage: str) -> None:
    with (ROOT / "samconfig.toml").open("rb") as file:
        stages = tomllib.load(file)
    deploy = stages[stage]["deploy"]["parameters"]
    given = dict(one.split("=", 1) for one in deploy["parameter_overrides"])
    assert given.keys() <= TEMPLATE["Parameters"].keys()
    assert f"runlane:environment={given['EnvironmentName']}" in deploy["tags"]
    others = [one["deploy"]["parameters"]["stack_name"] for name, one in stages.items() if name not in {"version", "default", stage}]
    assert deploy["stack_name"] not in others


def test_no_resource_has_a_fixed_name() -> None:
    fixed = [
        (name, key)
        for name, resource in RESOURCES.items()
        for key in (
            *("FunctionName", "QueueName", "RoleName", "LayerName", "LogGroupName", "ManagedPolicyName", "AlarmName", "DashboardName"),
            *("DBClusterIdentifier", "DBInstanceIdentifier", "DBSubnetGroupName", "DBClusterParameterGroupName", "GroupName"),
        )
        # Some refer to others by name.
        if not isinstance(resource.get("Properties", {}).get(key, {}), dict)
    ]
    assert not fixed


@pytest.mark.parametrize("layer", ["DependenciesLayer", "RuntimeLayer"])
def test_a_layer_is_built_by_its_own_recipe(layer: str) -> None:
    resource = RESOURCES[layer]
    folder = ROOT / resource["Metadata"].get("ContextPath", resource["Properties"]["ContentUri"])
    assert resource["Metadata"]["BuildMethod"] == "makefile"
    assert f"\nbuild-{layer}:" in (folder / "Makefile").read_text()
    assert "--invalidation-mode unchecked-hash" in (folder / "Makefile").read_text()
