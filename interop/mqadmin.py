"""RocketMQ's own `mqadmin` (rocketmq-tools 5.5.0), run against the address of a name server."""

from pathlib import Path

from interop.java import BUILT, InteropError, java_command, rocketmq_jars, run

COMMAND_TIMEOUT_S = 60
_MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


async def mqadmin(*arguments: str, nameserver: str, home: Path = BUILT / "mqadmin") -> str:
    """All that a command prints. Below `home` lie its logs, and its access key in conf/tools.yml.

    Raises InteropError if it tells an exception: mqadmin itself ends with 0 then too.
    """
    home.mkdir(parents=True, exist_ok=True)
    jars = await rocketmq_jars()
    code, output = await run(
        *java_command(jars, _MAIN, *arguments, "-n", nameserver, home=home, heap_mb=96),
        timeout_s=COMMAND_TIMEOUT_S,
    )
    if code != 0 or "\tat org.apache.rocketmq." in output:
        end = "\n".join(output.splitlines()[:12])
        raise InteropError(f"mqadmin {' '.join(arguments)} failed ({code})\n{end}")
    return output
