"""BullMQ for Node, as its users run it: the option that switches its stalled check off, and the script called from there."""

from __future__ import annotations

import pytest

from support.fleet import Fleet, for_nodes


@for_nodes
@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("skip", [False, True])
def test_skip_stalled_check_is_all_it_takes_to_switch_the_check_off(fleet: Fleet, package: str, skip: bool) -> None:
    """By the events of the keyspace: the key that every stalled check sets is never set."""
    fleet.client.config_set("notify-keyspace-events", "K$")
    try:
        with fleet.client.pubsub(ignore_subscribe_messages=True) as writes:
            writes.subscribe(f"__keyspace@0__:{fleet.key('stalled-check')}")
            writes.get_message(timeout=5)
            worker = fleet.hire(package, stalledInterval=20, skipStalledCheck=skip)
            program = fleet.control(package)
            # 20 jobs of 20 ms, one after the other: as many intervals
            program.add(20, {"ms": 20})
            worker.wait_for(lambda: worker.count("completed") == 20)
            message = writes.get_message(timeout=0.1)
            assert (message is None) is skip
    finally:
        fleet.client.config_set("notify-keyspace-events", "")
