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
    def count(self) -> int:
        """At least one: a change of no entry is kept too."""
        return 1 + len(self.groups) + len(self.topics) + len(self.consumer_groups)

    def add(self, other: "Changed") -> None:
        """What another one changed, too."""
        self.groups |= other.groups
        self.topics |= other.topics
        self.consumer_groups |= other.consumer_groups
        self.are_rights |= other.are_rights
        self.is_all |= other.is_all
