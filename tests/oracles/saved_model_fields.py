"""Fields of every message in a SavedModel, as the table by which the native backend reads one.

`python -m tests.oracles.saved_model_fields` writes the table of the installed TensorFlow.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rankline.serving

TABLE = Path(rankline.serving.__file__).parent / "native" / "saved_model" / "fields.h"
_A_LINE = 6
_HEADER = """\
// Fields of all messages of a SavedModel, made from the descriptors of TensorFlow {version} by
// `python -m tests.oracles.saved_model_fields`.
#ifndef RANKLINE_SAVED_MODEL_FIELDS_H_
#define RANKLINE_SAVED_MODEL_FIELDS_H_

#include <cstdint>

namespace rankline {{

constexpr uint8_t kRepeated = 0, kMap = 255;  // instead of a slot
constexpr uint8_t kNoMessage = 255;

struct ProtoField {{
  uint8_t message;  // whose field it is; 0 is SavedModel
  uint8_t number;
  uint8_t wire;  // type of protobuf's wire format
  uint8_t slot;  // of a singular field; members of a oneof share theirs
  uint8_t type;  // the message that it holds
}};

// clang-format off
// By message and number.
constexpr ProtoField kFields[] = {{
{rows}
}};
// clang-format on

}}  // namespace rankline

#endif  // RANKLINE_SAVED_MODEL_FIELDS_H_
"""


def table() -> str:
    """The header file, of the installed TensorFlow."""
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    rows = [f"{{{', '.join(map(str, row))}}}," for row in _rows(SavedModel.DESCRIPTOR)]
    lines = ["    " + " ".join(rows[begin : begin + _A_LINE]) for begin in range(0, len(rows), _A_LINE)]
    return _HEADER.format(version=tf.__version__, rows="\n".join(lines))


def messages(root: Any) -> list[Any]:
    """Descriptors of a message and of all that it may contain."""
    found = [root]
    for message in found:
        found += [field.message_type for field in message.fields if field.message_type not in (None, *found)]
    return found


def wire_type(field: Any) -> int:
    """Type in protobuf's wire format, as TensorFlow writes the field: numbers of repeated fields are packed."""
    if field.is_packed or field.type in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE):
        return 2
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
        return 1
    return 5 if field.type in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32) else 0


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _rows(root: Any) -> Iterator[tuple[int, int, int, int, int]]:
    found = messages(root)
    for number, message in enumerate(found):
        for field in sorted(message.fields, key=lambda field: field.number):
            held = 255 if field.message_type is None else found.index(field.message_type)
            yield number, field.number, wire_type(field), _slot(field), held


def _slot(field: Any) -> int:
    if is_map(field):
        return 255
    if field.is_repeated:
        return 0
    of_one = field.containing_oneof
    return int(min(member.number for member in of_one.fields) if of_one else field.number)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
