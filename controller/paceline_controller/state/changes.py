"""Pure: what one command, or several, changed in the published view."""

from dataclasses import dataclass, field

from paceline.types import ConsumerGroupName, GroupName, TopicName


@dataclass(slots=True, kw_only=True)
class Changed:
    """Names of entries of the view that came, went or became others."""

    groups: set[GroupName] = field(default_factory=set)
    topics: set[TopicName] = field(default_factory=set)
    consumer_groups: set[ConsumerGroupName] = field(default_factory=set)
    are_rights: bool = False
    """Users and rights changed, and with them what each user is shown."""
    is_all: bool = False
    """Any entry may be another."""

    @property
    def concerns_all(self) -> bool:
        """Every client is told, whatever topics and consumer groups it uses."""
        is_of_names = bool(self.topics or self.consumer_groups)
        return self.is_all or self.are_rights or bool(self.groups) or not is_of_names
