"""Other libraries, measured in the same turns, each in a process of its own."""

from specjax.bench.peers.protocol import PEERS, Peer, PeerArm, PeerError, check_packages

__all__ = ["PEERS", "Peer", "PeerArm", "PeerError", "check_packages"]
