"""`paceline cluster recover`: a group whose controllers are lost, out of its own stores (R18).

Without --store it only shows what is there to choose from; docs/OPERATIONS.md has the runbook.
"""

from typing import Any

import click

from paceline.cli.asking import ask
from paceline.cli.cluster.groups import ensure_meant
from paceline.cli.cluster.status import command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table
from paceline.errors import BadRequestError

Document = dict[str, Any]

_HEAD = ("GROUP", "STORE", "WAS", "EPOCH", "START", "END", "TOPICS", "ADDRESS", "IF CHOSEN")


@command.command("recover")
@click.argument("group", required=False)
@click.option("--list", "only_list", is_flag=True, help="Only show; as without --store.")
@click.option("--store", "store_id", help="The store whose log is the group's from now on.")
@click.option(
    "--give-up-missing",
    is_flag=True,
    help="Accept that messages may be lost which only other stores have, or none.",
)
@click.option("--forget", "forgotten", help="Take this store off the list: it is not needed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def recover(
    group: str | None,
    only_list: bool,
    store_id: str | None,
    give_up_missing: bool,
    forgotten: str | None,
    yes: bool,
    connect: Connect,
    as_json: bool,
) -> None:
    """Show stores of groups the controllers do not know; recover GROUP from --store.

    For when all controllers have lost their folders, or a group was cleaned by mistake: its brokers
    wait with their stores. A --store may be named by the beginning of its id.
    """
    if store_id is not None and forgotten is not None:
        raise click.UsageError("--store and --forget exclude each other")
    stores = [
        store
        for store in ask(connect, lambda admin: admin.broker_groups.presented_stores())
        if group is None or store["group"] == group
    ]
    if forgotten is not None and not only_list:
        _forget(_named(stores, forgotten), yes=yes, connect=connect, as_json=as_json)
    elif store_id is None or only_list:
        _show(stores, as_json=as_json)
    elif group is None:
        raise click.UsageError("name the GROUP that is recovered from --store")
    else:
        _recover(
            group, _named(stores, store_id), give_up_missing, yes, connect=connect, as_json=as_json
        )


# -- inside ---------------------------------------------------------------------------------------


def _recover(
    group: str, chosen: str, give_up_missing: bool, yes: bool, *, connect: Connect, as_json: bool
) -> None:
    warning = ", and lose what only others have" if give_up_missing else ""
    ensure_meant(yes, f"Recover broker group {group} from store {chosen}{warning}?")
    result = ask(
        connect,
        lambda admin: admin.broker_groups.recover(
            group, store=chosen, give_up_missing=give_up_missing
        ),
    )
    if as_json:
        echo_json(result)
        return
    loss = "; it counts as LOSSY" if result["is_unclean"] else ""
    click.echo(
        f"group {group}: recovered from store {chosen}, which is replica {result['replica_id']}"
        f" of {', '.join(map(str, result['replicas']))}{loss}"
    )


def _forget(chosen: str, *, yes: bool, connect: Connect, as_json: bool) -> None:
    ensure_meant(yes, f"Forget store {chosen}? Its broker must not run any more.")
    ask(connect, lambda admin: admin.broker_groups.forget_store(chosen))
    if as_json:
        echo_json({"store_id": chosen, "forgotten": True})
    else:
        click.echo(f"store {chosen} forgotten")


def _named(stores: list[Document], beginning: str) -> str:
    """The store of which this is the id, or the beginning of it; what is not listed goes as it is:
    it may have been recovered before, and saying that twice is no fault."""
    found = [store["store_id"] for store in stores if store["store_id"].startswith(beginning)]
    if beginning in found or not found:
        return beginning
    if len(found) > 1:
        raise BadRequestError(f"{len(found)} stores begin with {beginning}: say more of the id")
    return str(found[0])


def _show(stores: list[Document], *, as_json: bool) -> None:
    if as_json:
        for store in stores:
            echo_json(store)
        return
    if not stores:
        click.echo("no store waits to be recovered")
        return
    echo_table(_HEAD, [_row(store) for store in stores])
    for store in stores:
        faults = [refusal["detail"] for refusal in store["refusals"]] + store["losses"]
        if faults:
            click.echo()
            click.echo(f"{store['group']}, store {store['store_id']}:")
            for fault in faults:
                click.echo(f"- {fault}")


def _row(store: Document) -> tuple[str, ...]:
    if store["refusals"]:
        outcome = "refused"
    else:
        outcome = "may lose messages" if store["losses"] else "nothing lost"
    numbers = (f"{store[key]:,}" for key in ("last_epoch", "start", "end", "topics"))
    was = f"replica {store['replica_id']}"
    return (store["group"], store["store_id"], was, *numbers, store["address"], outcome)


__all__ = ["command"]
