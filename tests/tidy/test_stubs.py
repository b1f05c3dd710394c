"""The protobuf modules say what the .proto files say."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from tests.tidy.stubs import protoc, protos


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    out: Path = tmp_path_factory.mktemp("stubs") / "all"
    protoc(sys.executable, f"--descriptor_set_out={out}")
    return {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}


@pytest.mark.parametrize("name", protos())
def test_generated_module_fits_its_proto(name: str, parsed: dict[str, FileDescriptorProto]) -> None:
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    made = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(made)

    for file in (made, parsed[name]):
        _forget_json_names(file.message_type)
    assert made == parsed[name], "run: make stubs"


def _forget_json_names(messages: Iterable[DescriptorProto]) -> None:
    """Only protoc writes them into what it has parsed."""
    for message in messages:
        _forget_json_names(message.nested_type)
        for field in message.field:
            field.ClearField("json_name")
