"""Calls by which clients have a topic or a consumer group made that they are about to use."""

from typing import Any

from paceline.wire.fields import Fields
from paceline.wire.names import check_group_name, check_topic_name
from paceline_broker.service.produce.auto_create import Creator


class CreatingCalls:
    """See `Creator`; answers come once this broker's own view shows the thing."""

    def __init__(self, creator: Creator) -> None:
        self._creator = creator

    async def ensure_topic(self, fields: Fields) -> dict[str, Any]:
        name = check_topic_name(fields.text("topic"))
        fields.done()
        return {"topic": (await self._creator.ensure_topic(name)).to_json()}

    async def ensure_group(self, fields: Fields) -> dict[str, Any]:
        name = check_group_name(fields.text("group"))
        fields.done()
        return {"group": (await self._creator.ensure_group(name)).to_json()}
