"""Which worker serves a request: filter -> score -> pick, pure.

`choose` picks one worker; `plan` picks the workers of a whole request (a prefill and a decode worker, or one for both).
"""

from fulcrum.routing._choice import Candidate, Chosen, NobodyFits, NobodyThere, choose
from fulcrum.routing._paths import OneLeg, TwoLegs, plan, usable_path

__all__ = ["Candidate", "Chosen", "NobodyFits", "NobodyThere", "OneLeg", "TwoLegs", "choose", "plan", "usable_path"]
