"""One writer at a time, with real processes: one wins, the others are told."""

import os
import subprocess
import sys

import pytest

from elastic_tf.files import claim

RULE = "There is one writer."
# Without TensorFlow, which takes seconds to load.
OTHER = """
import sys
sys.argv = ["-m"]
from elastic_tf.files import claim
held = claim({path!r}, rule="", what="it")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_claim_is_told_from_whom_and_ends_with_its_process(tmp_path):
    lock = tmp_path / "lock"
    child = subprocess.Popen(
        [sys.executable, "-c", OTHER.format(path=str(lock))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    match = rf"one writer\. Received: '{tmp_path}', which process {child.pid} on '.+' since 2"
    for _ in range(2):  # asking leaves the name
        with pytest.raises(ValueError, match=match):
            claim(lock, rule=RULE, what=tmp_path)
    child.kill()  # kill -9
    child.communicate()
    with claim(lock, rule=RULE, what=tmp_path):
        assert f"process {os.getpid()} on" in lock.read_text()


def test_a_process_has_one_claim_unless_it_shares(tmp_path):
    lock = tmp_path / "lock"
    with claim(lock, rule=RULE, what="it"):
        with pytest.raises(ValueError, match=f"Received: 'it', which process {os.getpid()} on"):
            claim(lock, rule=RULE, what="it")
    first = claim(lock, rule=RULE, what="it", shared=True)
    with claim(lock, rule=RULE, what="it", shared=True):
        first.close()
        first.close()
        with pytest.raises(ValueError, match="Received: 'it'"):
            claim(lock, rule=RULE, what="it")
    for _ in range(2):
        claim(lock, rule=RULE, what="it")  # nobody refers to it: it is given back


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "valuable").write_text("data")
    (tmp_path / "lock").symlink_to("valuable")
    with pytest.raises(OSError, match="lock"):
        claim(tmp_path / "lock", rule=RULE, what="it")
    assert (tmp_path / "valuable").read_text() == "data"
