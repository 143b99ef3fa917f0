"""Schemas: written and read alike, refused when they contradict themselves, inlined for nodes."""

import json

import pytest
from configs import composed
from omegaconf import OmegaConf

from fl_app.tasks.schema import Column, Schema, inline_schema, read_schema

TABLE = Schema(
    kind="classification",
    input_shape=(3,),
    outputs=("no", "yes"),
    targets=("bought",),
    columns=(Column("age", 40.5, 12.25), Column("city", categories=("Bern", "${oc.env:HOME}"))),
)
IMAGES = Schema(
    "regression", (1, 8, 8), ("angle",), mean=(0.1,), deviation=(0.3,), target_mean=(90.0,),
    target_deviation=(45.0,),
)  # fmt: skip


@pytest.mark.parametrize("schema", [TABLE, IMAGES])
def test_what_is_written_is_read(schema, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(schema.to_json())
    assert read_schema(str(path)) == schema
    assert read_schema(schema.to_json()) == schema
    assert read_schema(json.loads(schema.to_json())) == schema
    assert read_schema(None) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format=2 must be 1"),
        ({"kind": "ranking"}, "kind=ranking must be one of classification, regression"),
        ({"outputs": ["no", "no"]}, "2 or more distinct names"),
        ({"outputs": [0, 1]}, "2 or more distinct names"),
        ({"input_shape": [4]}, r"input_shape=\[4\] must be \[3\], its columns"),
        ({"columns": [{"name": "age", "mean": 1.0, "deviation": 0.0}]}, "the second above 0"),
        ({"columns": [{"name": "city", "categories": ["a", "a"]}]}, "'city'=.* distinct"),
        ({"columns": [{"mean": 1.0}]}, "missing .* 'name'"),
        ({"mean": [float("nan")]}, "must be finite numbers"),
        ({"mean": [1.0], "deviation": [0.0]}, "deviation=.* must be finite numbers above 0"),
        ({"headings": []}, "unexpected keyword argument 'headings'"),
    ],
)
def test_a_bad_schema_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_schema({**json.loads(TABLE.to_json()), **change})
    assert "task.schema must be a schema as `python -m fl_app.tasks.schema" in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"), [(None, "No such file"), ("{", "Expecting"), ("[]", "a mapping")]
)
def test_a_bad_file_is_named(contents, message, tmp_path):
    path = tmp_path / "schema.json"
    if contents is not None:
        path.write_text(contents)
    with pytest.raises(ValueError, match=message) as caught:
        read_schema(str(path))
    assert f"task.schema={path} must be" in str(caught.value)


def test_nodes_get_the_contents_and_the_users_configuration_stays(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(TABLE.to_json())
    config = composed("task=digits")
    assert inline_schema(config) is config
    OmegaConf.set_struct(config, False)
    config.task.schema = str(path)
    sent = OmegaConf.create(OmegaConf.to_yaml(inline_schema(config), resolve=True))
    assert config.task.schema == str(path)
    assert inline_schema(sent) is sent
    assert read_schema(sent.task.schema) == TABLE
