"""The program of a prepared process: it has imported what other programs import, and becomes one of them by a fork."""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import types

PR_SET_PDEATHSIG = 1


def serve(modules: list[str]) -> list[str]:
    """Answer requests until the input ends; in a fork, return the arguments of the program that it has to run."""
    libc = ctypes.CDLL(None)
    for name in modules:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose these modules' threads"  # noqa: PTH208
    gc.collect()
    gc.freeze()
    server = os.getpid()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "poll" in request:
            answer = ended(request["poll"])
        else:
            settled, settling = os.pipe()
            answer = os.fork()
            if not answer:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                assert os.getppid() == server, "the server has died"
                argv: list[str] = request.pop("argv")
                settle(**request)
                os.closerange(3, max(settled, settling) + 1)
                return argv
            os.close(settling)
            os.read(settled, 1)  # its end: the fork has settled, or died
            os.close(settled)
        os.write(1, b"%s\n" % json.dumps(answer).encode())
    sys.exit()


def ended(pid: int) -> int | None:
    """Return the exit code of a fork, negative for a signal; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def settle(*, environment: dict[str, str], cwd: str, output: str, errors: str) -> None:
    """Give this process the surroundings of its own that a new one would have."""
    os.setpgid(0, 0)
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, output, _APPEND), (2, errors, _APPEND)):
        file = os.open(name, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)


def run(argv: list[str]) -> None:
    """Run a program as the interpreter does with these arguments: `-m MODULE ...`, `-c CODE ...` or `FILE ...`."""
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], os.getcwd()  # noqa: PTH109
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *argv[2:]], ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(argv[1], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        sys.argv, sys.path[0] = argv, os.path.dirname(os.path.abspath(argv[0]))  # noqa: PTH100, PTH120
        runpy.run_path(argv[0], run_name="__main__")


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
if __name__ == "__main__":
    run(serve(sys.argv[1:]))
