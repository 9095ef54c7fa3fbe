"""What the gateway makes of wrong bodies, held against vLLM's own request classes.

Fields of the two classes are mutated at random, keys written as JSON escapes and twice. Of each body that the gateway
accepts, the bodies of both legs go through vLLM's classes as an engine would judge them. Fails unless both legs get the
same verdict, no client reaches an argument of the engine, and at least half of the bodies are accepted.

    python benchmarks/bodies.py [--bodies 20000] [--seed 1] [--model NAME] [--json | --fields | --accepted]

`--accepted` prints those that gateway and vLLM accept, as JSON lists of path and body, for an engine to be asked.
`--fields` prints the fields that vLLM reads on each route, as tests/gateway/vllm_fields.json has them.
"""

from __future__ import annotations

import argparse
import json
import sys

from _loopback import body_fuzz

from fulcrum.gateway.api_formats.inference_request import ServedModel

SHOWN = 20
"""Bodies of each kind that are printed."""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=body_fuzz.SERVED.name)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fields", action="store_true")
    parser.add_argument("--accepted", action="store_true")
    arguments = parser.parse_args()
    fields = {path: body_fuzz.fields_of(path) for path in body_fuzz.CLASSES}
    if arguments.fields:
        print(json.dumps(fields, indent=2))
        return 0
    served = ServedModel(name=arguments.model, max_model_len=body_fuzz.MODEL_TOKENS)
    tally = body_fuzz.run(arguments.bodies, arguments.seed, served)
    if arguments.accepted:
        for each in tally.sample:
            print(json.dumps(each))
        return 0
    least = min(tally.mutated[f"{path} {name}"] for path, names in fields.items() for name in names)
    if arguments.json:
        print(
            json.dumps(
                {
                    **vars(tally),
                    "served": arguments.model,
                    "sample": len(tally.sample),
                    "least_mutated": least,
                    "fields": fields,
                }
            )
        )
    else:
        print(f"bodies {tally.bodies}, accepted {tally.accepted}, of these in two legs {tally.two_legs}")
        print(f"leg bodies that vLLM's classes refuse: {tally.refused_by_engine}")
        print(f"each field mutated {least} times or more")
        for title, found in (("verdicts differ", tally.disagreements), ("arguments reached", tally.reached)):
            print(f"{title}: {len(found)}")
            for line in found[:SHOWN]:
                print(f"  {line}")
    return 0 if not tally.disagreements and not tally.reached and 2 * tally.accepted >= tally.bodies else 1


if __name__ == "__main__":
    sys.exit(main())
