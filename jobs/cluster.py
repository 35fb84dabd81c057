"""Show the owners of replica ids, the vclock after which a source is read next, and checksums of replicasets.

Reads the tables only, without Spark, also while a stream runs. The applier map
(`warehouse.system_tables.applier_map`) translates global ids to a source's own replica ids.
"""

import sys

from config.deployment import Config
from jobs.main import main
from jobs.runtime.output import say, say_json, say_lines
from observe.instance_ids import (
    instance_id_reader,
    instances_in_source,
    json_document,
    text_lines,
    vclock_in_source,
)
from schemas.cluster_checksum import checksum


def show(config: Config, *, as_json: bool = False) -> None:
    """Print every instance, and the owners of each replica id over time."""
    tables = instance_id_reader(config)
    if as_json:
        say_json(json_document(tables))
    else:
        say_lines(text_lines(tables))


def show_vclock(config: Config, source: str, *, as_json: bool = False) -> None:
    """Print the vclock after which a source is read next, in the source's own replica ids."""
    tables = instance_id_reader(config)
    lsns = vclock_in_source(tables, tables.replicaset_of(config, source), source)
    if as_json:
        say_json(lsns)
    else:
        say("{" + ", ".join(f"{id_}: {lsn}" for id_, lsn in lsns.items()) + "}")


def show_checksum_of_instance_ids(
    config: Config, replicaset_or_source: str, *, as_json: bool = False
) -> None:
    """Print a checksum of a replicaset's pairs of replica id and instance uuid.

    Two lists of instances with the same checksum are equal. For a replicaset's uuid, the pairs are the aggregator's;
    for a source's name, they are those in its logs.
    """
    tables = instance_id_reader(config)
    is_uuid = replicaset_or_source in tables.cluster.replicaset_ids
    uuid = replicaset_or_source if is_uuid else tables.replicaset_of(config, replicaset_or_source)
    found = f"{checksum(instances_in_source(tables, uuid, None if is_uuid else replicaset_or_source)):08x}"
    if as_json:
        say_json({"replicaset": uuid, "checksum": found})
    else:
        say(found)


if __name__ == "__main__":
    sys.exit(main("cluster"))
