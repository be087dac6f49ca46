"""What a trainer's process is told by its environment, and what it says when something is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torchpass_bridge.core.scene import Limits
from torchpass_bridge.trainer.settings import Times, from_environment
from torchpass_bridge.wire import BEAT_S

TOLD = {
    "TORCHPASS_STORE": "nats://user:password@127.0.0.1:4222", "TORCHPASS_JOB": "j", "WORLD_SIZE": "4", "RANK": "2",
    "TORCHPASS_KEY": "0123456789abcdef",
}  # fmt: skip


def test_a_rank_and_a_spare() -> None:
    rank = from_environment({**TOLD, "LOCAL_RANK": "1", "TORCHPASS_HOST": "node 7.rack"}, Times())
    assert (rank.rank, rank.world, rank.accelerator, rank.host) == (2, 4, "1", "node 7.rack")
    assert rank.address == "127.0.0.1"
    assert rank.id.startswith("node-7-rack-")
    spare = from_environment({**TOLD, "TORCHPASS_SPARE": "1"}, Times())
    assert spare.rank is None
    assert spare.id != from_environment({**TOLD, "TORCHPASS_SPARE": "1"}, Times()).id


@pytest.mark.parametrize("missing", list(TOLD))
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        from_environment({name: value for name, value in TOLD.items() if name != missing}, Times())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "4"),
        ("RANK", "-1"),
        ("WORLD_SIZE", "many"),
        ("TORCHPASS_KEY", "short"),
        ("TORCHPASS_STORE", "/no/store"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        from_environment({**TOLD, name: value}, Times())


def test_store_and_key_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("nats://127.0.0.1:1\n")
    (tmp_path / "key").write_text("fedcba9876543210\n")
    told = {**TOLD, "TORCHPASS_STORE": str(tmp_path / "store"), "TORCHPASS_KEY_FILE": str(tmp_path / "key")}
    settings = from_environment(told, Times())
    assert (settings.store, settings.key) == ("nats://127.0.0.1:1", b"fedcba9876543210")


def test_copies_of_parts_are_left_with_buddies_unless_that_is_switched_off() -> None:
    assert from_environment(TOLD, Times()).buddies
    assert not from_environment({**TOLD, "TORCHPASS_BUDDY": "0"}, Times()).buddies


def test_timeouts_nest() -> None:
    Times().check()
    for name in Times.__struct_fields__[1:]:
        with pytest.raises(ValueError, match=f"{name}"):
            msgspec.structs.replace(Times(), **{name: BEAT_S / 2}).check()
    assert Times().phase_s == Limits().phase_s
