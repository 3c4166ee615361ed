"""Faults that no result shows: each is found by the check that is there for it, and by no other."""

from __future__ import annotations

import pytest

from e2e.harness import Project, Run, rehash

# Candidate: the checks that must fail, with their code and a part of what they say.
BROKEN = {
    "no_meta": {"opcheck.test_faketensor": ("OPCHECK_TEST_FAKETENSOR", "torch.library.register_fake")},
    "meta_reads_sizes": {"dynamic_shapes": ("DYNAMIC_SHAPES", "")},
    "wrong_gradient": {"gradcheck": ("GRADCHECK", "by central differences")},
    "claims_autograd": {"gradcheck": ("GRADCHECK", "no derivative is registered")},
    "no_autograd": {"autograd_claimed": ("AUTOGRAD_MISSING", "autograd: false")},
}


# Gradients are numbers too: the oracle compares them.
ALSO_WRONG = {"wrong_gradient": "WRONG_GRADIENTS", "claims_autograd": "WRONG_GRADIENTS"}


@pytest.mark.slow
@pytest.mark.parametrize("candidate", BROKEN)
def test_a_broken_contract_fails_although_every_result_is_right(project: Project, candidate: str) -> None:
    run = project.verify("sound", "--skip-benchmark", candidate=candidate)
    attempt = rehash(run)
    assert (run.code, attempt.accepted) == (4, False), run.stdout + run.stderr
    assert run.axis("numerics") == (
        ("FAIL", ALSO_WRONG[candidate]) if candidate in ALSO_WRONG else ("PASS", None)
    )
    assert run.axis("contract")[0] == "FAIL"
    checks = {check["name"]: check for check in run.record("correctness.json")["contract"]}
    for name, (code, part) in BROKEN[candidate].items():
        assert (checks[name]["status"], checks[name]["code"]) == ("FAIL", code), checks
        assert part in checks[name]["message"]
    assert "failed contract checks:" in run.stdout
    if candidate == "no_meta":
        assert_told_once(run)


def assert_told_once(run: Run) -> None:
    """A missing fake kernel was told in six lines: one names it, and what needs it is not asked."""
    shown = run.stdout.partition("failed contract checks:")[2].partition("\n\n")[0]
    assert len(shown.strip().splitlines()) == 1, run.stdout
    checks = run.record("correctness.json")["contract"]
    others = [check for check in checks if check["code"] == "NO_FAKE_KERNEL"]
    assert len(others) > 2
    assert all(check["status"] == "SKIPPED" and check["message"].startswith("not asked") for check in others)
