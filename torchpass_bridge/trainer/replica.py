"""A DDP that changes its process group between two steps, and sums in the same order afterwards.

DDP sums its gradients in buckets. In its first step these follow the order of the parameters; before its second one
they are rebuilt in the order in which the gradients come, and stay so. The order of a sum is in its last bits: so
whoever begins with step 0 gets the first kind, as stock DDP does, and whoever begins with a later one the second.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.utils import _sync_module_states
from torch.nn.parallel import DistributedDataParallel

from torchpass_bridge.trainer.groups import Group


class Replica:
    def __init__(self, ddp: DistributedDataParallel, solo: Group) -> None:
        self.ddp: Any = ddp
        self._solo = solo
        self._rebuilt = False
        self._used = False

    def alone(self, step: int, hollow: Group) -> None:
        """For a step that is done without the others."""
        self._look()
        if step == 0 and self._used:
            self._anew(self._solo.pg)
        else:
            self.ddp._update_process_group(self._solo.pg)
        self._used = True

    def begin(self, group: Group, step: int) -> None:
        """In `group`, with step number `step` as the next one. At step 0 all get rank 0's parameters, as in stock DDP.

        RuntimeError when a member is gone."""
        self._look()
        if step == 0:
            if self._used:
                self._anew(group.pg)
            else:
                self.ddp._update_process_group(group.pg)
            self._used = True
            self._like_rank_0()
            return
        self.rebuild()
        self._used = True
        self.ddp._update_process_group(group.pg)

    def rebuild(self) -> None:
        """Its first backward pass is behind it: have the buckets for the later ones, without asking the others."""
        if not self._rebuilt:
            self.ddp.reducer._update_process_group(self._solo.pg)
            self.ddp.reducer._rebuild_buckets()
            self._rebuilt = True

    def settle(self) -> None:
        """A step that broke leaves nothing behind that the next forward pass does not put right."""

    def settings(self) -> str:
        """What the order of its sums depends on."""
        ddp = self.ddp
        return f"{ddp.bucket_bytes_cap} {ddp.find_unused_parameters} {ddp.static_graph} {ddp.broadcast_buffers}"

    def _look(self) -> None:
        self._rebuilt = self._rebuilt or self.ddp._has_rebuilt_buckets

    def _anew(self, pg: dist.ProcessGroup) -> None:
        """As when it was made: what DDP itself does when it comes out of a file."""
        ddp = self.ddp
        ddp.process_group = pg
        ddp.reducer = ddp.logger = None  # the old one's hooks go with it
        ddp._has_rebuilt_buckets = self._rebuilt = False
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        if ddp.static_graph:
            ddp.reducer._set_static_graph()
            ddp.logger._set_static_graph()

    def _like_rank_0(self) -> None:
        ddp = self.ddp
        with torch.no_grad():
            _sync_module_states(
                module=ddp.module,
                process_group=ddp.process_group,
                broadcast_bucket_size=ddp.broadcast_bucket_size,
                src=0,
                params_and_buffers_to_ignore=ddp.parameters_to_ignore,
                broadcast_buffers=ddp.broadcast_buffers,
            )
