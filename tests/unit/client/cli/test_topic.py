"""`paceline topic` and `paceline cluster status`."""

from tests.unit.client.cli.conftest import Runner

from paceline.cli.cluster.status import describe


def test_a_created_topic_is_listed_and_described(paceline: Runner) -> None:
    created = paceline("topic", "create", "flights", "--queues", "3")
    listed = paceline("topic", "list")
    described = paceline("topic", "describe", "flights")

    assert created.stdout == "topic flights created: 3 queues in group g1\n"
    assert listed.stdout.splitlines()[0].split() == ["TOPIC", "ID", "QUEUES", "GROUPS"]
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
        ["flights", "2", "3", "g1:3"],
        ["orders", "1", "2", "g1:2"],
    ]
    assert "messages: 0" in described.stdout
    assert len(described.stdout.splitlines()) == 2 + 3


def test_topics_as_json_lines(paceline: Runner) -> None:
    (created,) = paceline.json("topic", "create", "flights", "--queues", "1")
    listed = paceline.json("topic", "list")
    (described,) = paceline.json("topic", "describe", "flights")

    assert created == {
        "topic": "flights",
        "topic_id": 2,
        "queues": {"g1": 1},
        "read_queues": {"g1": 1},
        "write_queues": {"g1": 1},
        "perm": 6,
        "message_type": "NORMAL",
        "attributes": {},
        "is_system": False,
    }
    assert [topic["topic"] for topic in listed] == ["flights", "orders"]
    (row,) = described["ranges"]
    assert (row["group"], row["queue"], row["start"], row["end"]) == ("g1", 0, 0, 0)


def test_a_topic_that_exists_is_refused_and_kept(paceline: Runner) -> None:
    outcome = paceline("topic", "create", "orders", "--queues", "5")

    assert outcome.exit_code == 1
    assert outcome.stderr == "paceline: it is there\n"
    assert paceline.json("topic", "list")[0]["queues"] == {"g1": 2}


def test_a_deleted_topic_is_gone(paceline: Runner) -> None:
    outcome = paceline("topic", "delete", "orders", "--yes")

    assert outcome.stdout == "topic orders deleted\n"
    assert paceline("topic", "list").stdout == ""


def test_describe_counts_messages_and_shows_a_group_without_master(paceline: Runner) -> None:
    paceline("send", "orders", "one")
    with_master = paceline("topic", "describe", "orders")
    paceline.on_cluster(lambda cluster: cluster.elect("g1", None))
    without = paceline("topic", "describe", "orders")

    assert "messages: 1\n" in with_master.stdout
    assert without.exit_code == 0
    assert "at least 0 (a group does not answer)" in without.stdout


def test_status_shows_nodes_that_do_not_answer_and_fails(paceline: Runner) -> None:
    outcome = paceline("cluster", "status")

    assert outcome.exit_code == 1
    assert "group g1: master 1 in epoch 1, in sync 1, 2 of 3" in outcome.stdout
    assert outcome.stdout.count("no answer") == 3
    assert "No controller leads" in outcome.stdout


def test_status_of_a_cluster_that_serves(paceline: Runner) -> None:
    view = paceline.on_cluster(lambda cluster: cluster.view)
    (group,) = view.groups.values()
    broker = {"group": "g1", "epoch": 1, "end": 5000, "flushed": 5000, "confirm": 4000}
    brokers = {
        group.replicas[1].client_address: {
            **broker,
            "replica_id": 1,
            "role": "master",
            "is_open": True,
        },
        group.replicas[2].client_address: {
            **broker,
            "replica_id": 2,
            "role": "replica",
            "stopped": "LOSSY",
            "care": {"damage": {"position": 1, "end": 2, "reason": "bits"}},
        },
    }
    controllers = {"c:1": {"controller_id": "c1", "role": "leader", "term": 3}}

    document = describe(view, controllers, brokers)

    assert document["is_serving"]
    master, replica = document["groups"][0]["replicas"]
    assert (master["is_open"], master["confirm"]) == (True, 4000)
    assert (replica["is_open"], replica["in_sync"]) == (False, True)
    assert (replica["stopped"], replica["damage"]["reason"]) == ("LOSSY", "bits")
    assert (master["stopped"], master["damage"]) == (None, None)


def test_status_does_not_believe_another_process_on_a_brokers_port(paceline: Runner) -> None:
    view = paceline.on_cluster(lambda cluster: cluster.view)
    (group,) = view.groups.values()
    stranger = {"group": "g7", "replica_id": 1, "role": "master", "is_open": True}

    document = describe(view, {}, {group.replicas[1].client_address: stranger})

    assert document["groups"][0]["replicas"][0]["role"] is None
    assert not document["is_serving"]
