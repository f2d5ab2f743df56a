"""Generated items with codes, and users who mostly go from an item to the next one of its topic.

Items and users are functions of the seed and their number, as the sentences of `corpus` are.
"""

from collections.abc import Iterator
from random import Random

_TOPIC, _GROUP = 24, 6  # items of a topic, and of a group in it
_LEAST, _MOST = 4, 12  # items of a user
_STAYS, _FOLLOWS = 0.95, 0.8  # in the topic, and with the item that usually comes next


def generated_items(*, seed: int, types: int) -> dict[str, tuple[str, ...]]:
    """Codes of `types` items: topic, group, place in the group, and a number that tells most of the others apart."""
    items: dict[str, tuple[str, ...]] = {}
    for number in range(types):
        topic, place = divmod(number, _TOPIC)
        group, member = divmod(place, _GROUP)
        twin = int(Random(f"{seed}:item:{number}").random() * 4)
        # The last two of a group share their place, and all codes where their numbers happen to be the same.
        items[f"item{number}"] = (f"<a_{topic}>", f"<b_{group}>", f"<c_{min(member, _GROUP - 2)}>", f"<d_{twin}>")
    return items


def generated_sequences(*, seed: int, types: int, users: int) -> Iterator[tuple[str, ...]]:
    """The items of each user in the order of time."""
    topics = max(1, types // _TOPIC)
    for user in range(users):
        draw = Random(f"{seed}:user:{user}").random
        item = int(draw() * topics) * _TOPIC + int(draw() * _TOPIC)
        sequence = [item]
        for _ in range(_LEAST + int(draw() * (_MOST - _LEAST + 1)) - 1):
            topic = item // _TOPIC if draw() < _STAYS else int(draw() * topics)
            place = (item * 7 + 5) % _TOPIC if draw() < _FOLLOWS else int(draw() * _TOPIC)
            item = topic * _TOPIC + place
            sequence.append(item)
        yield tuple(f"item{number % types}" for number in sequence)
