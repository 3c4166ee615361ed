"""Entering the cage: what a process does to itself, in order, before foreign code runs in it.

Called first thing in a fresh process that has one thread. With ``strict`` every feature of the policy
is entered or the process ends (exit code 71): a worker that serves is inside all that was recorded.
Without it, what is refused is left out and told; the judge's probe learns so what this machine gives.

Processes with a pid namespace: the started one stays outside and passes on how the worker ended, its
child is the namespace's init and reaps, the grandchild goes on as the worker.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from mini_kv.system.sandbox import kernel, landlock, mounts, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CANNOT_ENTER = 71
_NAMESPACES = {
    "mount_namespace": kernel.CLONE_NEWNS,
    "process_namespace": kernel.CLONE_NEWPID,
    "network_namespace": kernel.CLONE_NEWNET,
    "ipc_namespace": kernel.CLONE_NEWIPC,
    "host_namespace": kernel.CLONE_NEWUTS,
}

Policy = dict[str, Any]
Reasons = dict[str, str]


class _Entry:
    """One entering: which features are wanted, and why some were not reached."""

    def __init__(self, policy: Policy, *, strict: bool) -> None:
        self.policy = policy
        self.wanted = set(policy["features"])
        self.strict = strict
        self.reasons: Reasons = {}

    def attempt(self, feature: str, action: Callable[[], None]) -> bool:
        if feature not in self.wanted:
            return False
        try:
            action()
        except OSError as error:
            if self.strict:
                raise
            self.miss(feature, str(error))
            return False
        return True

    def miss(self, feature: str, reason: str) -> None:
        self.wanted.discard(feature)
        self.reasons[feature] = reason


def enter(policy: Policy, parent: int, keep: Sequence[int]) -> int:
    """Enter every feature of ``policy``; return the id that ``getppid`` now gives. Ends the process else.

    ``parent`` is the judge's process id, ``keep`` the descriptors above 2 that stay open.
    """
    try:
        return _enter(_Entry(policy, strict=True), parent, keep)
    except OSError as error:
        sys.stderr.write(f"the sandbox cannot be entered: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_ENTER)


def try_to_enter(policy: Policy, parent: int, keep: Sequence[int]) -> tuple[set[str], Reasons]:
    """Enter what this machine allows; return the features reached and, for the others, why not."""
    entry = _Entry(policy, strict=False)
    _enter(entry, parent, keep)
    return entry.wanted, entry.reasons


def _enter(entry: _Entry, parent: int, keep: Sequence[int]) -> int:
    _die_with(parent)
    os.umask(0o022)  # the folders that the mounts below need are for another user too
    _close_others(keep)
    _prefer_as_victim()
    _leave_namespaces(entry)
    _die_with(parent)  # forgotten by the kernel when the user changed
    if "process_namespace" in entry.wanted:
        _become_child_of_an_init(entry, keep)
        parent = os.getppid()
    else:
        if "own_proc" in entry.wanted:
            entry.miss("own_proc", "needs a process namespace")
        _arrange(entry)
    os.chdir(entry.policy["scratch"])
    _confine(entry)
    return parent


def _die_with(parent: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _close_others(keep: Sequence[int]) -> None:
    low = 3
    for descriptor in sorted(keep):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _prefer_as_victim() -> None:
    # When memory runs out, the kernel should end the candidate, not the judge.
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write("500")
    except OSError:
        pass


# --------------------------------------------------------------------------- namespaces


def _leave_namespaces(entry: _Entry) -> None:
    if "user_namespace" in entry.wanted:
        # Inside, no other user exists to change to.
        _change_user(entry)
        if not entry.attempt("user_namespace", _enter_user_namespace):
            for name in [*_NAMESPACES, "own_proc"]:
                if name in entry.wanted:
                    entry.miss(name, entry.reasons["user_namespace"])
    wanted = [name for name in _NAMESPACES if name in entry.wanted]
    try:
        kernel.unshare(sum(_NAMESPACES[name] for name in wanted))
    except OSError:
        for name in wanted:
            entry.attempt(name, lambda flag=_NAMESPACES[name]: kernel.unshare(flag))  # type: ignore[misc]


def _enter_user_namespace() -> None:
    """Become one user of a namespace of its own; every other id is unmapped there."""
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:
            stream.write(text)


def _arrange(entry: _Entry) -> None:
    """Make the mounts of a namespace of one's own; in the init, so that ``/proc`` shows its processes."""
    if entry.attempt("mount_namespace", mounts.make_private):
        entry.attempt("own_proc", mounts.mount_proc)
        entry.attempt("mount_namespace", lambda: mounts.veil(entry.policy))
    elif "own_proc" in entry.wanted:
        entry.miss("own_proc", "needs a mount namespace")


# --------------------------------------------------------------------------- process namespace


def _become_child_of_an_init(entry: _Entry, keep: Sequence[int]) -> None:
    """Return in the worker only: its two ancestors stay here until it ends."""
    reader, writer = os.pipe()
    init = os.fork()
    if init:
        os.close(writer)
        _close_all(keep)
        _pass_on_the_end(init, reader)
    os.close(reader)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _arrange(entry)
    worker = os.fork()
    if worker:
        _close_all(keep)
        kernel.guard_memory()
        _reap_until(worker, writer)
    os.close(writer)


def _close_all(descriptors: Sequence[int]) -> None:
    # Held open here, the channel would look alive to the judge after the worker closed it.
    for descriptor in descriptors:
        os.close(descriptor)


def _reap_until(worker: int, writer: int) -> None:
    while True:
        process, status = os.waitpid(-1, 0)
        if process == worker:
            os.write(writer, status.to_bytes(4, "little"))
            os._exit(0)  # and with its init, every process of the namespace ends


def _pass_on_the_end(init: int, reader: int) -> None:
    """End as the worker did, signal for signal, so that the judge sees what it would see without us."""
    kernel.guard_memory()
    os.waitpid(init, 0)
    raw = os.read(reader, 4)
    status = int.from_bytes(raw, "little") if len(raw) == 4 else signal.SIGKILL
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            sys.stderr.flush()
            import faulthandler

            faulthandler.disable()
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


# --------------------------------------------------------------------------- the worker itself


def _confine(entry: _Entry) -> None:
    policy = entry.policy
    accountable: bool = policy["accountable"]
    if accountable:
        # The CPU time of a child that ended is in its parent's account only if somebody waited for it, and an
        # orphan must stay among the worker's descendants: in its namespace the init sees to that.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if "process_namespace" not in entry.wanted:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    entry.attempt("resource_limits", lambda: _limit(policy["limits"]))
    _change_user(entry)
    entry.attempt("no_capabilities", kernel.drop_capabilities)
    entry.attempt("no_new_privileges", lambda: kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))
    entry.attempt("file_access", lambda: landlock.restrict(_allowed(entry)))
    entry.attempt(
        "system_call_filter", lambda: seccomp.install(policy["socket_families"], accountable=accountable)
    )


def _limit(limits: dict[str, int]) -> None:
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def _change_user(entry: _Entry) -> None:
    user: int = entry.policy["user"]
    if os.getuid() == user:
        return
    if entry.attempt("own_user", lambda: _become(user, entry.policy)):
        # The kernel marks a process that changed its user as not dumpable, which would close its own
        # /proc/self to it; the CUDA driver writes thread names there.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _become(user: int, policy: Policy) -> None:
    """Change to a user that owns nothing; raises ``OSError`` when it could not open what it must."""
    places = [(path, os.R_OK) for path in policy["must_read"]]
    places += [(path, os.R_OK | os.W_OK) for path in policy["must_open"]]
    child = os.fork()  # there is no way back from another user, so a child tries
    if child == 0:
        os._exit(_try_user(user, places))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        place = f"open {places[code - 2][0]}" if 2 <= code < len(places) + 2 else "be entered"
        raise OSError(errno.EACCES, f"user {user} cannot {place}")
    _set_ids(user)


def _set_ids(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _try_user(user: int, places: Sequence[tuple[str, int]]) -> int:
    try:
        _set_ids(user)
    except OSError:
        return 1
    closed = (number for number, (path, mode) in enumerate(places) if not os.access(path, mode))
    return next(closed, -2) + 2


def _allowed(entry: _Entry) -> list[tuple[str, int]]:
    policy = entry.policy
    private = policy["private"] if "mount_namespace" in entry.wanted else ()
    # Else the process alone; the number is the one that this /proc gives it.
    proc = "/proc" if "own_proc" in entry.wanted else f"/proc/{os.readlink('/proc/self')}"
    return [
        *((path, landlock.LISTED) for path in policy["listed"]),
        *((path, landlock.READABLE) for path in policy["readable"]),
        *((path, landlock.DEVICE) for path in policy["devices"]),
        *((path, landlock.READABLE | landlock.WRITABLE) for path in (*policy["writable"], *private)),
        # The CUDA driver names its threads through /proc/self/task/*/comm, and fails without.
        (proc, landlock.DEVICE),
    ]
