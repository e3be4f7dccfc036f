"""Taking answers off a transport of the load generator."""

from serving.benchmark.transport import Answer, Transport
from tests.support.waiting import wait_until


def receive(connection: Transport, count: int) -> dict[int, Answer]:
    """So many answers, by the key of their request."""
    answers: dict[int, Answer] = {}

    def has_all() -> bool:
        answers.update({answer.key: answer for answer in connection.poll(0.5)})
        return len(answers) >= count

    wait_until(has_all)
    return answers
