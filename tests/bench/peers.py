"""Stand-ins for other libraries: scripts that speak the protocol of peers."""

from __future__ import annotations

import contextlib
import sys
import textwrap

from specjax.bench.peers import protocol

ECHO = """
    import serve

    def load():
        def generate(ids, new_tokens, mode, gamma, arrived):
            print("this library prints where it should not")
            if mode == "fail":
                raise ValueError("cannot do that")
            if mode == "die":
                raise SystemExit("killed")
            arrived()
            count = new_tokens - (mode == "short")
            return [[(row[-1] + step) % 7 for step in range(count)] for row in ids]
        return "echo 1.0, " + ARGUMENTS.dtype, {"plain": None, "lookup": 1}, generate

    if __name__ == "__main__":
        ARGUMENTS = serve.arguments(None)
        serve.serve(load)
"""


def install_echo(folder, monkeypatch, source=ECHO, modules=(), needs_gguf=False):
    """Makes `echo` a peer, driven by a script in `folder`."""
    (folder / "serve.py").write_text((protocol.SCRIPTS / "serve.py").read_text())
    (folder / "echo.py").write_text(textwrap.dedent(source))
    kind = protocol.Kind(
        script=str(folder / "echo.py"),
        modules=modules,
        packages="echo-package",
        reads="a .gguf file",
        needs_gguf=needs_gguf,
    )
    monkeypatch.setitem(protocol.PEERS, "echo", kind)


@contextlib.contextmanager
def running(model, name="echo", **changes):
    options = {"dtype": "float32", "threads": 1, "device": "cpu"} | changes
    peer = protocol.Peer(name, sys.executable, model, **options)
    try:
        yield peer
    finally:
        peer.close()
