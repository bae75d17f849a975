"""Compares a GGUF file with the golden vectors by the independent forward pass in NumPy."""

import argparse
import json

from numpy_model import NumpyModel, compare_case


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="NAME.f16.gguf, or a quantised one")
    parser.add_argument("golden", help="NAME.golden.json")
    args = parser.parse_args()
    model = NumpyModel(args.model)
    with open(args.golden, encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    for case in cases:
        result = compare_case(model, case)
        print(
            f"{case['text'][:36]!r:40} max|dlogit| {result['max_dlogit_last']:.2e}"
            f"  mean|dnll| {result['mean_dnll']:.2e}"
            f"  argmax {result['argmax_equal']}"
            f"  experts same {result['experts_equal']}"
            f"  neuron-set differences {result['neurons_differing']}"
        )


if __name__ == "__main__":
    main()
