"""Protobuf schemas: from `.proto` texts to descriptors.

The compiler runs as a process of its own: there are texts on which it aborts, or takes all memory. Each schema has a descriptor pool of its
own, so that two versions of one file may be in one process. The libraries are imported when the first schema is made: they cost a tenth of
a second, which only a pipeline with Protobuf messages should pay.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from spark_jobs.faults.problems import JobProblem

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

# Files of this folder come with the compiler.
_BUNDLED = "google/protobuf/"
# A schema takes a twentieth of a second.
_LONGEST_S = 30
# The compiler with limits: a name that is long and has many fields takes their product, and so do errors that name it. The reader of its
# result takes as much memory as it. A limit may be below these already.
_COMPILER = f"""
import resource, sys
for kind, most in (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, {2**26}), (resource.RLIMIT_AS, {2**29}):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
sys.path.append(sys.argv.pop(1))
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""
# All of its errors that is read (bytes), and all of the first one that is told (characters).
_MOST_SAID, _LONGEST_REASON = 65_536, 300


class ProtoSchema:
    """The descriptors of one `.proto` file and all files that it imports, in a pool of their own."""

    def __init__(self, descriptor_set: bytes) -> None:
        """`descriptor_set`: a serialized FileDescriptorSet, as the compiler makes it: each file after those that it imports.

        Its last file is the schema's own. Raises ValueError of one line if Protobuf refuses it.
        """
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        self._pool = DescriptorPool()
        try:
            files = FileDescriptorSet.FromString(descriptor_set).file
            for file in files:
                self._pool.AddSerializedFile(file.SerializeToString())
        except (DecodeError, TypeError) as problem:
            raise ValueError(f"the Protobuf schema is wrong: {_one_line(str(problem))}") from problem
        self._file = self._pool.FindFileByName(files[-1].name)
        self._names = dict(_paths(self._file.package, files[-1].message_type))

    def message_at(self, indexes: Sequence[int]) -> Descriptor:
        """The message at a path of indexes, as Confluent's wire format has it: [1, 0] is the first one nested in the second of the file.

        Only messages that the source text declares are counted, not the entries of maps. Raises ValueError if there is none.
        """
        name = self._names.get(tuple(indexes))
        if name is None:
            raise ValueError(f"the Protobuf schema has no message at the path {list(indexes)}")
        return self._pool.FindMessageTypeByName(name)

    def messages(self) -> Iterator[Descriptor]:
        """The messages that the schema's own file declares, in its order, nested ones behind the one around them."""
        return map(self._pool.FindMessageTypeByName, self._names.values())

    def message_named(self, name: str) -> Descriptor:
        """The message of this full name (`package.Outer.Inner`), in any of the files. Raises ValueError if there is none."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            known = ", ".join(sorted(message.full_name for message in self._file.message_types_by_name.values())[:10])
            raise ValueError(f"the Protobuf schema has no message {name!r}; its file has {known or 'none'}") from None


def compile_source(source: str, imported: Mapping[str, str]) -> ProtoSchema:
    """Compiles the text of a `.proto` file. `imported`: for each file that it imports, directly or not, the name in `import`, and the text.

    The files of google/protobuf/ need not be there. Raises ValueError of one line: the compiler's first error, or a name that leaves the
    folder of the imports.
    """
    own = "schema.proto"
    while own in imported:
        own = f"_{own}"
    with TemporaryDirectory(prefix="protobuf-") as folder:
        for name, text in {**imported, own: source}.items():
            if name.startswith(_BUNDLED):
                continue
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or not path.name:
                raise ValueError(f"the Protobuf schema imports a file of the name {name!r}, which is no relative path")
            try:
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            except (OSError, UnicodeError) as problem:
                raise ValueError(f"the Protobuf schema's file {name!r} cannot be written: {problem}") from problem
        return ProtoSchema(_compile(Path(folder), own))


def _compile(folder: Path, name: str) -> bytes:
    """The descriptor set of the file and of its imports, with that file last."""
    import grpc_tools

    package = Path(grpc_tools.__path__[0])
    with TemporaryDirectory(prefix="protobuf-") as out, Path(out, "errors").open("w+b") as said:
        options = ["--include_imports", "--descriptor_set_out=set", f"-I{folder}", f"-I{package / '_proto'}"]
        # Isolated: no module may come from the schema's files, nor a setting from the environment.
        command = [sys.executable, "-I", "-S", "-c", _COMPILER, str(package.parent), *options, name]
        environment = {variable: os.environ[variable] for variable in ("LD_LIBRARY_PATH",) if variable in os.environ}
        try:
            status = subprocess.run(
                command, cwd=out, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=_LONGEST_S
            ).returncode
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        if status == 0:
            return Path(out, "set").read_bytes()
        if status == -signal.SIGKILL:
            # It is the machine's fault rather than the schema's, whose records must not be rejected for it.
            raise JobProblem(
                f"the Protobuf compiler was killed, or did not end within {_LONGEST_S} s: has this machine the memory? Try again"
            )
        said.seek(0)
        lines = said.read(_MOST_SAID).decode("utf-8", "replace").replace(f"{folder}/", "").splitlines()
    # Warnings and the library's own lines may come first, and the last lines only repeat that an import has errors.
    errors = [line for line in lines if ".proto:" in line and ": warning: " not in line]
    reason = f"signal {-status}" if status < 0 else (errors or lines[-1:] or [f"status {status}"])[0]
    raise ValueError(f"the Protobuf schema does not compile: {_one_line(reason)}")


def _paths(package: str, messages: Any) -> Iterator[tuple[tuple[int, ...], str]]:
    """The path of indexes and the full name of each message and those nested in it."""
    # Descriptors know their nested types in the order of the file, with the entries of maps between them.
    declared = (message for message in messages if not message.options.map_entry)
    for index, message in enumerate(declared):
        name = f"{package}.{message.name}" if package else message.name
        yield (index,), name
        for path, inner in _paths(name, message.nested_type):
            yield (index, *path), inner


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]
