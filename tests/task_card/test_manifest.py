"""Every kind of bad manifest is refused with a sentence; a good one gives the record."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import yaml

from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.records.card import CandidateManifest
from mini_kv.task_card import check_pair, load_manifest, load_task_card
from mini_kv.task_card.manifest_rules import RESERVED_NAMESPACES

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
VALID = (FIXTURES / "manifests/candidate.yaml").read_text("utf-8")
FOLDER = "candidates/scale/v0"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    folder = root / FOLDER
    folder.mkdir(parents=True)
    (root / "mini_kv.toml").touch()
    for name in ("binding.cpp", "kernel.cu", "registration.py"):
        (folder / name).touch()
    (folder / "candidate.yaml").write_text(VALID)
    return root


def edited(old: str, new: str) -> str:
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


def problems_of(project: Path, content: str) -> tuple[str, ...]:
    (project / FOLDER / "candidate.yaml").write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load_manifest(project / FOLDER, project)
    assert caught.value.code == "INVALID_MANIFEST"
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    prefix = f"{FOLDER}/candidate.yaml:"
    for problem in caught.value.problems:
        assert problem.startswith(prefix), problem
        assert "found " in problem and ("; allowed: " in problem or "; required: " in problem), problem
    return tuple(problem.removeprefix(prefix) for problem in caught.value.problems)


def test_a_valid_manifest_gives_the_record_and_where_it_lies(project: Path) -> None:
    loaded = load_manifest(project / FOLDER, project)
    assert isinstance(loaded.manifest, CandidateManifest)
    assert loaded.folder == FOLDER
    assert loaded.path == f"{FOLDER}/candidate.yaml"
    assert loaded.sha256 == hashlib.sha256(VALID.encode()).hexdigest()
    assert loaded.manifest.sources == ("binding.cpp", "kernel.cu")


def test_a_relative_folder_is_found_from_here_or_from_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "candidates")
    assert load_manifest(Path("scale/v0"), project).folder == FOLDER
    assert load_manifest(Path(FOLDER), project).folder == FOLDER


def test_the_shipped_manifests_are_valid(project_root: Path) -> None:
    for path in sorted((project_root / "candidates").glob("*/*/candidate.yaml")):
        assert load_manifest(path.parent, project_root).path == path.relative_to(project_root).as_posix()


DEFECTS: dict[str, dict[str, str]] = yaml.safe_load((FIXTURES / "manifests/defects.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", DEFECTS)
def test_one_defect_gives_one_sentence(project: Path, name: str) -> None:
    defect = DEFECTS[name]
    found = problems_of(project, edited(defect["old"], defect["new"]))
    assert len(found) == 1, found
    assert found[0].startswith(defect["problem"]), found


def test_all_errors_come_at_once(project: Path) -> None:
    content = edited("version: 0.1.0", "version: one").replace("-O3", "-I/x").replace("kernel.cu", "none.cu")
    found = problems_of(project, content)
    assert [problem.split(":")[1].strip() for problem in found] == ["version", "sources[1]", "cxx_flags[0]"]


# ---------------------------------------------------------------------- files


def test_a_source_that_is_no_regular_file_is_refused(project: Path) -> None:
    folder = project / FOLDER
    (folder / "kernel.cu").unlink()
    (folder / "kernel.cu").mkdir()
    (found,) = problems_of(project, VALID)
    assert found == "7: sources[1]: found a directory at 'kernel.cu'; allowed: a regular file"
    (folder / "kernel.cu").rmdir()
    os.mkfifo(folder / "kernel.cu")
    (found,) = problems_of(project, VALID)
    assert found.startswith("7: sources[1]: found a pipe, socket or device at 'kernel.cu'")


@pytest.mark.parametrize(("name", "key"), [("kernel.cu", "7: sources[1]"), ("registration.py", "12: python")])
def test_a_file_linked_out_of_the_candidate_is_refused(project: Path, name: str, key: str) -> None:
    (project / "elsewhere").touch()
    (project / FOLDER / name).unlink()
    (project / FOLDER / name).symlink_to(project / "elsewhere")
    (found,) = problems_of(project, VALID)
    assert found.startswith(
        f"{key}: found '{name}', which a symbolic link leads out of the candidate's folder;"
    )


def test_a_source_named_twice_through_a_link_is_refused(project: Path) -> None:
    (project / FOLDER / "kernel.cu").unlink()
    (project / FOLDER / "other.cpp").symlink_to("binding.cpp")
    (found,) = problems_of(project, edited("kernel.cu", "other.cpp"))
    assert found == "7: sources[1]: found 'other.cpp' again; allowed: each file once"


def test_a_folder_linked_out_of_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "candidate.yaml").write_text(VALID)
    (project / "candidates/link").symlink_to(outside)
    for folder in (project / "candidates/link", outside):
        with pytest.raises(ConfigurationError) as caught:
            load_manifest(folder, project)
        assert "found a file outside the project" in caught.value.problems[0]


def test_a_missing_folder_or_manifest_is_refused(project: Path) -> None:
    (project / FOLDER / "candidate.yaml").unlink()
    for folder in (project / FOLDER, project / "candidates/none", Path("a\0b")):
        with pytest.raises(ConfigurationError) as caught:
            load_manifest(folder, project)
        assert caught.value.code == "INVALID_MANIFEST"
        assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "mistaken", ["v0", "candidates/scale", "candidates/scale/v1", "candidates/scale/v0/candidate.yaml"]
)
def test_a_mistaken_folder_is_answered_with_the_candidates_there_are(project: Path, mistaken: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_manifest(Path(mistaken), project)
    (problem,) = caught.value.problems
    assert problem.endswith(f"found no such file; allowed: a candidate's folder, such as {FOLDER}")


def test_a_project_without_candidates_is_told_what_a_folder_must_hold(project: Path) -> None:
    (project / FOLDER / "candidate.yaml").unlink()
    with pytest.raises(ConfigurationError) as caught:
        load_manifest(project / FOLDER, project)
    (problem,) = caught.value.problems
    assert problem.endswith("allowed: a candidate's folder with a candidate.yaml")


# ---------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    "flag",
    [
        "-O0",
        "-O2",
        "-O3",
        "-Os",
        "-std=c++17",
        "-std=c++20",
        "-march=native",
        "-funroll-loops",
        "-fno-math-errno",
        "-ffast-math",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Werror=return-type",
        "-DNAME",
        "-DNAME=1",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
        "-fno-trapping-math",
        "-mavx2",
        "-fopenmp",
        "-g",
    ],
)
def test_an_honest_cxx_flag_is_accepted(project: Path, flag: str) -> None:
    (project / FOLDER / "candidate.yaml").write_text(edited("[-O3]", f'["{flag}"]'))
    assert load_manifest(project / FOLDER, project).manifest.cxx_flags == (flag,)


@pytest.mark.parametrize(
    "flag",
    [
        "-O3",
        "-std=c++17",
        "-DNAME=2",
        "--use_fast_math",
        "-use_fast_math",
        "-lineinfo",
        "-maxrregcount=64",
        "--expt-relaxed-constexpr",
        "--extra-device-vectorization",
        "-Xptxas=-v",
        "-Xptxas=-O3",
        "--fmad=false",
    ],
)
def test_an_honest_cuda_flag_is_accepted(project: Path, flag: str) -> None:
    (project / FOLDER / "candidate.yaml").write_text(edited("[--use_fast_math]", f'["{flag}"]'))
    assert load_manifest(project / FOLDER, project).manifest.cuda_flags == (flag,)


FOREIGN_FLAGS = [
    "-I/etc",
    "-I",
    "-isystem/x",
    "-include/etc/passwd",
    "-include",
    "-imacros",
    "-L/x",
    "-L.",
    "-lcrypt",
    "-l",
    "-Wl,-rpath,/x",
    "-Wa,-a",
    "-Wp,-MD,x",
    "-Wl",
    "-Xlinker",
    "-Xcompiler=-fplugin=x.so",
    "-fplugin=x.so",
    "-fplugin-arg-x",
    "-B/x",
    "-wrapper",
    "-o",
    "-ox",
    "@flags",
    "-save-temps",
    "-specs=x",
    "-x",
    "-E",
    "-S",
    "-c",
    "-MF",
    "-MD",
    "--sysroot=/x",
    "-fdump-tree-all",
    "-fprofile-use=/x",
    "-fprofile-generate",
    "-dumpbase",
    "-Ofast",
    "-O",
    "-O4",
    "-DX=a;b",
    "-DX=$(id)",
    "-DX=`id`",
    "-D",
    "-DX=@f",
    "-D1",
    "-march=x86-64",
    "-ccbin=/x",
    "--compiler-bindir=/x",
    "-gencode",
    "-arch=sm_90",
    "-Xptxas=--output-file=x",
    "-Xptxas=-v,-o,x",
    "--options-file=x",
    "-optf=x",
    "binding.cpp",
    "kernel.cu",
    "/etc/passwd",
    "-maxrregcount=0",
    "-maxrregcount=9999",
    "-fsanitize=address",
    "-nostdinc",
    "-static",
    "-shared",
    "-run",
    "--run",
    "-dc",
    "-keep",
    "-Wno-x=../y",
]


@pytest.mark.parametrize("key", ["[-O3]", "[--use_fast_math]"])
@pytest.mark.parametrize("flag", [*FOREIGN_FLAGS, "", " ", "-O3 -I/x", "-O3\u00a0", "-DX=" + "1" * 300])
def test_a_flag_that_reaches_elsewhere_is_refused(project: Path, key: str, flag: str) -> None:
    found = problems_of(project, edited(key, f'["{flag}"]'))
    assert len(found) == 1
    assert "_flags[0]: found " in found[0]


def test_a_flag_with_a_line_break_is_refused(project: Path) -> None:
    assert len(problems_of(project, edited("[-O3]", '["-O3\\n"]'))) == 1


def test_a_hundred_flags_are_refused(project: Path) -> None:
    (found,) = problems_of(project, edited("[-O3]", f"[{', '.join(['-O3'] * 100)}]"))
    assert found.startswith("8: cxx_flags: found 100 flags; allowed: at most 64")


# ---------------------------------------------------------------------- names and schemas


@pytest.mark.parametrize("namespace", sorted(RESERVED_NAMESPACES))
def test_a_namespace_of_pytorch_is_refused(project: Path, namespace: str) -> None:
    (found,) = problems_of(project, edited("scale_v0::scale", f"{namespace}::scale"))
    assert found.startswith(f"5: dispatcher: found the namespace '{namespace}', which is PyTorch's; allowed:")


@pytest.mark.parametrize(
    "schema",
    [
        "scale(Tensor x) -> Tensor",
        "scale_v0::scale(Tensor x) -> Tensor",
        "scale.overload(Tensor x) -> Tensor",
        "scale() -> ()",
        "scale(Tensor(a!) x, *, float eps=1e-6, int[] shape, bool? flag=None) -> (Tensor, Tensor)",
        "scale(Tensor(a) x, Tensor[] xs, Tensor?[] ys, int[2] pad=[0, 0]) -> Tensor(a)",
        "scale(SymInt[] size, str mode='a', Scalar alpha=1) -> Tensor[]",
        "scale(Tensor(a -> *) x) -> Tensor(a)[]",
        "scale(Tensor x) -> (Tensor out, Tensor rstd)",
    ],
)
def test_an_operator_schema_is_accepted(project: Path, schema: str) -> None:
    (project / FOLDER / "candidate.yaml").write_text(
        edited("scale(Tensor x, float factor=1.0) -> Tensor", schema)
    )
    assert load_manifest(project / FOLDER, project).manifest.schema == schema


@pytest.mark.parametrize(
    "schema",
    [
        "(Tensor x) -> Tensor",
        "other(Tensor x) -> Tensor",
        "other::scale(Tensor x) -> Tensor",
        "scale2(Tensor x) -> Tensor",
        "scale(Tensor x)",
        "scale Tensor x -> Tensor",
        "scale(Tensor x -> Tensor",
        "scale(Tensor[ x) -> Tensor",
        "scale(Tensor) -> Tensor",
        "scale(Tensor x,) -> Tensor",
        "scale(Tensor x) -> ",
        "scale(Tensor x) -> 3",
        "import os",
    ],
)
def test_what_is_no_schema_of_the_operator_is_refused(project: Path, schema: str) -> None:
    (found,) = problems_of(project, edited("scale(Tensor x, float factor=1.0) -> Tensor", schema))
    assert found.startswith("6: schema: found "), found


def test_a_candidate_of_another_operator_is_refused(project: Path) -> None:
    (project / "x.yaml").write_text((FIXTURES / "cards/valid.yaml").read_text("utf-8"))
    card = load_task_card(project / "x.yaml", project).card
    check_pair(card, load_manifest(project / FOLDER, project).manifest)
    (project / FOLDER / "candidate.yaml").write_text(edited("operator: scale", "operator: shift"))
    with pytest.raises(ConfigurationError) as caught:
        check_pair(card, load_manifest(project / FOLDER, project).manifest)
    assert caught.value.code == "WRONG_CANDIDATE"
    assert caught.value.message == (
        "The candidate scale_v0 implements the operator 'shift'; the card scale allows only 'scale'."
    )
