"""The training script's side, the only one that imports torch: five lines, and a job outlives its hosts."""

from torchpass_bridge.trainer.endings import Ending, Fenced, HandedOver, NotNeeded, Refused, Stopped, Torn
from torchpass_bridge.trainer.session import Run, join
from torchpass_bridge.trainer.settings import Times

__all__ = ["Ending", "Fenced", "HandedOver", "NotNeeded", "Refused", "Run", "Stopped", "Times", "Torn", "join"]
