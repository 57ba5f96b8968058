"""Run a real S3 server on loopback: print its port, and serve until standard input ends."""

from __future__ import annotations

import logging
import sys
import warnings

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()
