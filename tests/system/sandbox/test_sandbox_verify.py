"""``verify`` with a candidate whose library, on being opened, goes for the judge's files and memory.

If anything lies open to it, the constructor ends the process with exit code 66; caged, it finds nothing,
computes the right sums and is accepted. Without a cage the same library is caught by that code, which
shows that it does what it claims.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mini_kv import pipeline
from mini_kv.core.records.isolation import Isolation, IsolationLevel
from mini_kv.core.records.results import Status
from mini_kv.pipeline import Verdict, VerifyRequest
from mini_kv.system.sandbox import cage as cage_module

ROOT = Path(__file__).resolve().parents[3]

THIEF = r"""
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void found(const char* what) {
  fprintf(stderr, "thief: %s\n", what);
  _exit(66);
}

static void search(const char* path, int flags) {
  int descriptor = open(path, flags, 0600);
  if (descriptor >= 0) found(path);
}

__attribute__((constructor)) static void steal() {
  const char* readable[] = {PATHS};
  for (const char* path : readable) search(path, O_RDONLY);
  search("ARCHIVE/forged.json", O_WRONLY | O_CREAT);
  char path[300];
  if (DIR* processes = opendir("/proc")) {
    while (dirent* entry = readdir(processes)) {
      int process = atoi(entry->d_name);
      if (process <= 0 || process == getpid()) continue;
      const char* names[] = {"mem", "environ", "maps", "fd/0"};
      for (const char* name : names) {
        snprintf(path, sizeof path, "/proc/%d/%s", process, name);
        search(path, O_RDONLY);
      }
      if (process > 1 && kill(process, 0) == 0) found("another process can be signalled");
    }
  }
  for (int descriptor = 3; descriptor < 64; ++descriptor) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    char target[300] = {};
    if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "ROOT") &&
        !strstr(target, "inbox")) found(target);
  }
  sockaddr_in nowhere = {};
  nowhere.sin_family = AF_INET;
  nowhere.sin_port = htons(9);
  nowhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int wire = socket(AF_INET, SOCK_DGRAM, 0);
  if (wire >= 0 && sendto(wire, "x", 1, 0, (sockaddr*)&nowhere, sizeof nowhere) == 1)
    found("a datagram left");
}
"""
CARD = """\
schema_version: "1.0.0"
task_id: vector_add_theft
operator: vector_add
operator_version: 1.0.0
reference: mini_kv.references.vector_add:reference
input_factory: mini_kv.references.vector_add:make_inputs
candidate: candidates/thief
device: cpu
tolerances:
  float32: {rtol: 1.0e-6, atol: 3.0e-45}
  float64: {rtol: 1.0e-12, atol: 1.0e-300}
contract: {functional: true, opcheck: true, gradcheck: true, deterministic: true, streams: true}
benchmark: {case_ids: [timed], primary_case_id: timed, warmup: 1, iterations: 5, repeats: 2}
cases:
  - {id: core_31, kind: core, params: {shape: [31], dtype: float32}}
  - {id: core_129, kind: core, params: {shape: [129], dtype: float32}}
  - {id: timed, kind: benchmark, params: {shape: [4096], dtype: float32}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an archive, a baseline, a secret seed and a thief."""
    root = tmp_path / "project"
    thief = root / "candidates" / "thief"
    shutil.copytree(ROOT / "candidates" / "vector_add" / "v0_naive", thief)
    (root / "mini_kv.toml").touch()
    for name in ("tasks/card.yaml", "baselines/old.json", "artifacts/vector_add_theft/old/correctness.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(CARD if name.startswith("tasks") else '{"expected": [1, 2, 3]}')
    places = [root / "baselines/old.json", root / "artifacts/vector_add_theft/old/correctness.json"]
    places += [root / "tasks/card.yaml", root / "artifacts", root / ".build", root, thief, Path.home()]
    places += [
        ROOT / "src/mini_kv/pipeline.py",
        ROOT / "src/mini_kv/references/vector_add.py",
        Path("/etc/shadow"),
    ]
    source = THIEF.replace("PATHS", ", ".join(json.dumps(str(place)) for place in places))
    source = source.replace("ARCHIVE", str(root / "artifacts")).replace("ROOT", str(root))
    (thief / "thief.cpp").write_text(source)
    manifest = thief / "candidate.yaml"
    manifest.write_text(
        manifest.read_text()
        .replace("vector_add_v0_naive", "vector_add_thief")
        .replace("[binding.cpp", "[thief.cpp, binding.cpp")
    )
    return root


def verify(project: Path) -> Verdict:
    request = VerifyRequest(
        task=project / "tasks" / "card.yaml",
        candidate=None,
        device="cpu",
        skip_benchmark=True,
        baseline=None,
        artifacts_root=None,
        timeout_s=60.0,
    )
    return pipeline.verify(request, lambda _: None)


@pytest.mark.slow
def test_a_thief_finds_nothing_in_the_cage_and_much_without(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caged = verify(project)
    axis = next(axis for axis in caged.attempt.axes if axis.name == "isolation")
    level = IsolationLevel(str(axis.message).partition(":")[0])
    if not level.reaches(IsolationLevel.CONFINED):
        pytest.skip(f"this machine gives no more than '{level.value}'")
    assert not caged.attempt.findings
    assert [axis for axis in caged.attempt.axes if axis.status is Status.FAIL] == []
    assert (caged.attempt.exit_code, caged.attempt.findings) == (0, ())
    assert not list((project / "artifacts").rglob("forged.json"))

    bare = Isolation(
        level=IsolationLevel.PROCESS, features=("own_process", "scrubbed_environment"), missing=()
    )
    monkeypatch.setattr(cage_module, "probe_ground", lambda *_: bare)
    open_to_all = verify(project)
    assert open_to_all.attempt.exit_code == 3
    assert [one.code for one in open_to_all.attempt.findings] == ["LOAD_EXITED"]
    assert "exit code 66" in open_to_all.attempt.findings[0].message
    assert "thief: " in open_to_all.attempt.findings[0].evidence[0]
