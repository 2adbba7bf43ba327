"""Sample the rows of a Ray dataset on several processes, within one budget, and go on later.

A small cluster runs on this machine for as long as the example does, and listens on 127.0.0.1 only.
In life, `ray.init(address=...)` connects to yours, and the rows come from `ray.data.read_json` or
`ray.data.read_parquet`.
"""

# needs: Ray, which nox -s ray installs
# expect: first: 150 passed, 50 unfinished
# expect: the first answer: question 0 -> passing...
# expect: then: 200 passed, 150 of them from the journals

from collections import Counter

import ray

from mellea_like.batch.ray import ClusterLimit, local_cluster, sample_dataset


def make_strategy(limit):
    """Make what samples; each actor calls this once, in its own process."""
    from mellea_like import RejectionSamplingStrategy
    from mellea_like.backends import SimulatedBackend
    from mellea_like.limits import LimitedBackend

    server = SimulatedBackend(median=0.05, pass_rate=1.0)  # in life: OpenAIBackend("some-model")
    return RejectionSamplingStrategy(LimitedBackend(server, limit), loop_budget=2)


def sample(questions, budget):
    answers = sample_dataset(
        questions,
        make_strategy,
        prompt="{{ question }}",
        actors=2,
        calls_per_actor=8,
        journal_dir="journals",
        limits=ClusterLimit(requests=budget, requests_per_minute=6000),
    )
    return sorted(answers.take_all(), key=lambda row: row["id"])


def main():
    rows = [{"id": number, "question": f"question {number}"} for number in range(200)]
    with local_cluster(cpus=3):
        ray.data.DataContext.get_current().enable_progress_bars = False
        questions = ray.data.from_items(rows, override_num_blocks=4)

        first = sample(questions, budget=150)
        count = Counter(row["status"] for row in first)
        print(f"first: {count['passed']} passed, {count['unfinished']} unfinished")
        answered = next(row for row in first if row["success"])
        print("the first answer:", answered["question"], "->", answered["output"])

        # The budget was spent before all rows were done. With a new one, only the rest is sampled.
        then = sample(questions, budget=50)
        replayed = sum(row["replayed"] for row in then)
        print(
            f"then: {sum(r['success'] for r in then)} passed, {replayed} of them from the journals"
        )


if __name__ == "__main__":
    main()
