"""What tests of broadcasting share with others."""

from paceline.consumer.push import PushSettings

SETTINGS = PushSettings(
    message_model="broadcasting",
    start="first",
    commit_interval_ms=10,
    persist_interval_ms=20,
    offsets_folder="/home/offsets",
)
