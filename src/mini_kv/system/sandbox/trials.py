"""What a hostile process would try, each tried for real; run inside the cage, by trusted code.

A trial returns ``None`` when it was refused and a sentence when it succeeded. ``GUARDS`` names the
features of which each refusal is due: where a trial succeeds, those were not reached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from typing import TYPE_CHECKING, Any

from mini_kv.core.time_limits import CONNECT_TIMEOUT_S
from mini_kv.system.sandbox import kernel, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable

Targets = dict[str, Any]
"""``judge`` (process id), ``secret`` (a file), ``outside`` (a folder), ``tcp_port``, ``abstract``,
``unix`` (listening sockets), ``given`` (a file that may be read only), ``families``."""

# Unlike PTRACE_ATTACH it does not stop the other process, which may be the judge that waits for us.
_PTRACE_SEIZE = 0x4206


def _refused(action: Callable[[], object], said: str) -> str | None:
    try:
        action()
    except (OSError, ValueError):  # setrlimit puts a refusal as a ValueError
        return None
    return said


def read_secret(targets: Targets) -> str | None:
    """Read a file that was not granted."""
    return _refused(lambda: open(targets["secret"], "rb").close(), f"{targets['secret']} was opened")


def list_outside(targets: Targets) -> str | None:
    """List a folder that was not granted."""
    return _refused(lambda: os.listdir(targets["outside"]), f"{targets['outside']} was listed")


def write_outside(targets: Targets) -> str | None:
    """Make a file outside the scratch folder."""
    for folder in (targets["outside"], "/", "/usr", "/etc", "/var/tmp"):
        path = f"{folder.rstrip('/')}/mini-kv-trial-{os.getpid()}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            continue
        with contextlib.suppress(OSError):
            os.unlink(path)
        return f"a file was made in {folder}"
    return None


def change_outside(targets: Targets) -> str | None:
    """Change the mode of a file that was not granted."""
    return _refused(
        lambda: os.chmod(targets["secret"], 0o600), f"the mode of {targets['secret']} was changed"
    )


def write_given(targets: Targets) -> str | None:
    """Write to a file that was handed over for reading."""
    return _refused(lambda: open(targets["given"], "ab").close(), f"{targets['given']} was opened to write")


def connect_tcp(targets: Targets) -> str | None:
    """Connect to a listening TCP port of the judge's."""
    return _reached(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", targets["tcp_port"]))


def make_network_socket(targets: Targets) -> str | None:
    """Make a socket of any family that leads out of the process's own machine or namespace."""
    families = {"AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17, "AF_ALG": 38, "AF_VSOCK": 40}
    for name, family in families.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            if _refused(lambda f=family, k=kind: socket.socket(f, k).close(), name):  # type: ignore[misc]
                return f"an {name} socket was made"
    return None


def connect_abstract(targets: Targets) -> str | None:
    """Connect to an abstract UNIX socket of the judge's."""
    return _reached(socket.AF_UNIX, socket.SOCK_STREAM, targets["abstract"])


def connect_unix(targets: Targets) -> str | None:
    """Connect to a UNIX socket that has a path."""
    return _reached(socket.AF_UNIX, socket.SOCK_STREAM, targets["unix"])


def _reached(family: int, kind: int, address: Any) -> str | None:
    def connect() -> None:
        with socket.socket(family, kind) as one:
            one.settimeout(CONNECT_TIMEOUT_S)
            one.connect(address)

    return _refused(connect, f"{address} was reached")


def _is_out_of_reach(targets: Targets) -> bool:
    """Say whether the judge's number means ourselves or our init: in a container it may be process 1."""
    return os.getpid() == 2 and targets["judge"] in (1, 2)


def read_judge(targets: Targets) -> str | None:
    """Open the judge's memory, environment or descriptors through ``/proc``."""
    if _is_out_of_reach(targets):
        return None
    for name in ("mem", "environ", "maps", "auxv"):
        path = f"/proc/{targets['judge']}/{name}"
        if _refused(lambda p=path: os.close(os.open(p, os.O_RDONLY)), path):  # type: ignore[misc]
            return f"{path} was opened"
    return _refused(lambda: os.listdir(f"/proc/{targets['judge']}/fd"), "the judge's descriptors were listed")


def trace_judge(targets: Targets) -> str | None:
    """Attach to the judge as a debugger."""
    number = seccomp.calls()["ptrace"] if seccomp.machine_is_known() else 101
    return _refused(
        lambda: kernel.system_call(number, _PTRACE_SEIZE, targets["judge"], 0, 0), "ptrace attached"
    )


def signal_judge(targets: Targets) -> str | None:
    """Signal the judge, and the parent (signal 0 asks for permission only)."""
    if _is_out_of_reach(targets):
        return None
    if _refused(lambda: os.kill(targets["judge"], 0), "the judge"):
        return "the judge could be signalled"
    parent = os.getppid()
    return _refused(lambda: os.kill(parent, 0), "the parent could be signalled") if parent > 1 else None


def limit_judge(targets: Targets) -> str | None:
    """Read the judge's resource limits, which the right to change them comes with."""
    if _is_out_of_reach(targets):
        return None
    return _refused(
        lambda: resource.prlimit(targets["judge"], resource.RLIMIT_NOFILE), "the judge's limits were reached"
    )


def see_others(targets: Targets) -> str | None:
    """Find another process than one's own and its init in ``/proc``."""
    try:
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    others = [one for one in found if one not in (os.getpid(), os.getppid())]
    return f"{len(others)} other processes are in /proc" if others else None


def regain_root(targets: Targets) -> str | None:
    """Become root again."""
    if os.getuid() == 0:
        return "the process runs as root"
    return _refused(lambda: os.setuid(0), "the process became root again")


def regain_capabilities(targets: Targets) -> str | None:
    """Hold a capability."""
    with open("/proc/self/status", encoding="ascii") as stream:
        held = {line.split()[0]: int(line.split()[1], 16) for line in stream if line.startswith("Cap")}
    held = {name: value for name, value in held.items() if name in ("CapPrm:", "CapEff:") and value}
    return f"capabilities are held: {held}" if held else None


def raise_limits(targets: Targets) -> str | None:
    """Leave a core dump, or raise a hard limit."""
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        return "a crash could leave a core dump"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY:
        return "files may grow without bound"
    return _refused(
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard + 1)), "a hard limit was raised"
    )


def new_namespaces(targets: Targets) -> str | None:
    """Make a user namespace, inside which one is root."""
    return _in_child(lambda: kernel.unshare(kernel.CLONE_NEWUSER), "a user namespace was made")


def forbidden_calls(targets: Targets) -> str | None:
    """Make each denied system call with arguments that do no harm where it is allowed."""
    numbers = seccomp.calls() if seccomp.machine_is_known() else {}
    # EPERM is what the filter says; any other answer came from beyond it.
    names = (
        "process_vm_readv",
        "kcmp",
        "perf_event_open",
        "bpf",
        "userfaultfd",
        "io_uring_setup",
        "keyctl",
        "add_key",
        "open_by_handle_at",
        "pidfd_getfd",
        "personality",
        "mount",
        "umount2",
        "pivot_root",
        "setns",
        "fsopen",
        "chroot",
    )
    passed = [name for name in names if name in numbers and not _is_denied(numbers[name])]
    return f"not denied: {', '.join(passed)}" if passed else None


def _is_denied(number: int) -> bool:
    try:
        # Arguments of -1 are invalid everywhere; personality(0xffffffff) only asks.
        kernel.system_call(number, 0xFFFF_FFFF, 0, 0, 0, 0, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def raw_devices(targets: Targets) -> str | None:
    """Open a disk, the kernel's log or its memory, or make a device node."""
    for path in ("/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/kvm", "/dev/fuse"):
        if _refused(lambda p=path: os.close(os.open(p, os.O_RDONLY)), path):  # type: ignore[misc]
            return f"{path} was opened"
    return _refused(lambda: os.mknod("trial-null", 0o020666, os.makedev(1, 3)), "a device node was made")


def stray_descriptors(targets: Targets) -> str | None:
    """Find a descriptor other than standard input, output and the granted ones."""
    strays = []
    for descriptor in range(3, 256):
        if descriptor in targets.get("descriptors", ()):
            continue
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            strays.append(descriptor)
    return f"descriptors {strays} were inherited" if strays else None


def _in_child(action: Callable[[], object], said: str) -> str | None:
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError:
            os._exit(0)
        os._exit(1)
    return said if os.waitpid(child, 0)[1] else None


# Trial -> features of which one at least must refuse it.
GUARDS: dict[str, tuple[Callable[[Targets], str | None], tuple[str, ...]]] = {
    "read_secret": (read_secret, ("file_access", "mount_namespace")),
    "list_outside": (list_outside, ("file_access", "mount_namespace")),
    "write_outside": (write_outside, ("file_access",)),
    "change_outside": (change_outside, ("own_user", "mount_namespace")),
    "write_given": (write_given, ("file_access", "own_user")),
    "connect_tcp": (connect_tcp, ("system_call_filter", "network_namespace")),
    "make_network_socket": (make_network_socket, ("system_call_filter",)),
    "connect_abstract": (connect_abstract, ("file_access", "network_namespace")),
    "connect_unix": (connect_unix, ("mount_namespace",)),
    "read_judge": (read_judge, ("file_access", "process_namespace", "own_user")),
    "trace_judge": (trace_judge, ("system_call_filter",)),
    "signal_judge": (signal_judge, ("process_namespace", "own_user")),
    "limit_judge": (limit_judge, ("process_namespace", "own_user")),
    "see_others": (see_others, ("own_proc",)),
    "regain_root": (regain_root, ("own_user",)),
    "regain_capabilities": (regain_capabilities, ("no_capabilities",)),
    "raise_limits": (raise_limits, ("resource_limits",)),
    "new_namespaces": (new_namespaces, ("system_call_filter",)),
    "forbidden_calls": (forbidden_calls, ("system_call_filter",)),
    "raw_devices": (raw_devices, ("file_access", "own_user")),
    "stray_descriptors": (stray_descriptors, ("own_process",)),
}


def run_all(targets: Targets) -> dict[str, str | None]:
    """Run every trial; what one raises unexpectedly is a sentence too."""
    results: dict[str, str | None] = {}
    for name, (trial, _) in GUARDS.items():
        try:
            results[name] = trial(targets)
        except Exception as error:  # noqa: BLE001 - a trial that breaks has shown nothing
            results[name] = f"the trial broke: {type(error).__name__}: {error}"
    return results
