"""before_replace over the versions of each key: native where the policy chooses one, else what its resolver makes.

Where a resolver makes a tuple that is no version's, the key gets a row beside its versions: `replicaset_id` is minus
that of the last writer, whose format the tuple has and whose origin and times it bears. All versions then lie in
`_versions`, as of any key. Of keys of which one version takes part, a resolver hears nothing.
Not here: the order of versions (`jobs.batch.choices`), what resolvers do (`udfs.before_replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.base import PRESENT, UNFIT
from jobs.batch.choices import Choice
from jobs.batch.identities import Identities
from jobs.batch.resolve import BY_RESOLVER, DECIDED, TOLD, chosen, of_key, ordered
from udfs.before_replace.resolver import CANDIDATE_COLUMNS, OUTCOME_SPARK


def decide(
    versions: DataFrame,
    identities: Identities,
    choices: Mapping[int, Choice],
    hold: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Choose what stands under each key, by the policy of its table.

    Parameters
    ----------
    versions : DataFrame
        As `jobs.batch.resolve.met` makes them.
    identities : Identities
    choices : mapping of int to Choice
        By table number.
    hold : callable
        Returns a frame's rows computed once, as `jobs.batch.pin.Pins.cache` does.

    Returns
    -------
    DataFrame
        `jobs.batch.resolve.DECIDED`.

    """
    placed = ordered(versions, identities, choices)
    makes = [number for number, choice in choices.items() if choice.resolver is not None]
    native = chosen(placed.where(~F.col("table").isin(makes)) if makes else placed).select(*DECIDED)
    if not makes:
        return native
    made = _resolved(chosen(placed.where(F.col("table").isin(makes))), choices, hold)
    return made if len(makes) == len(choices) else native.unionByName(made)


def _resolved(
    decided: DataFrame, choices: Mapping[int, Choice], hold: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Return the versions with what their resolver made of them instead of the one that stands last."""
    # Of most keys one replicaset alone has a version: nothing more is computed of them, and Python sees none.
    decided = hold(decided)
    alone = decided.where(~F.col("decision")).select(*DECIDED)
    return alone.unionByName(_asked(decided.where("decision"), choices, hold))


def _asked(
    decided: DataFrame, choices: Mapping[int, Choice], hold: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Return the versions of keys that several have, with what their resolver made of them."""
    # The last writer's row asks for the whole key; the others only hear the answer.
    asks = F.col("wins")
    unknown = (F.col("state") == UNFIT) & F.col("tuple").isNull()
    taking = F.when(F.col("order").isNotNull(), F.struct(F.col("order"), _candidate().alias("version")))
    key = decided.withColumn("all", F.sort_array(F.collect_list(taking).over(of_key())))
    key = key.withColumn("unknown", F.max(unknown).over(of_key()))
    asked = F.when(asks & ~F.col("unknown"), F.col("all.version"))
    # Computed here: else Spark 4.2 loses `all` where all tables of a batch have such a policy
    # (INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND). Held, not checkpointed: what is lost with an executor is computed anew.
    key = hold(key.withColumn("asked", asked))
    key = key.withColumn("own", _outcome(choices)).withColumn(
        "outcome", F.max_by("own", F.when(asks, F.lit(1))).over(of_key())
    )
    key = key.withColumn("is_last", asks)
    return _with_made(_told(key))


def _candidate() -> Column:
    columns = {
        "timestamp": F.unix_micros("timestamp"),
        "created": F.unix_micros("created"),
        "layout": F.col("format"),
    }
    return F.struct(*[columns.get(name, F.col(name)).alias(name) for name in CANDIDATE_COLUMNS])


def _outcome(choices: Mapping[int, Choice]) -> Column:
    outcome = F.lit(None).cast(OUTCOME_SPARK)
    for number, choice in choices.items():
        if choice.resolver is not None:
            own = choice.resolver(F.when(F.col("table") == number, F.col("asked")))
            outcome = F.when(F.col("table") == number, own).otherwise(outcome)
    return outcome


def _told(key: DataFrame) -> DataFrame:
    """Return the versions with the winner that the outcome names: a version, the tuple that was made, or none."""
    chosen_id = F.get(F.col("all.version.replicaset_id"), F.col("outcome.winner"))
    is_one = F.col("replicaset_id") == chosen_id
    last = F.get(F.col("all.version"), F.size("all") - 1)
    made = F.struct(
        *[
            value.alias(name)
            for name, value in {
                "replicaset_id": -last["replicaset_id"],
                "tuple": F.col("outcome.tuple"),
                "global_id": last["global_id"],
                "lsn": last["lsn"],
                "timestamp": F.col("winner.timestamp"),
                "state": F.lit(PRESENT),
                "changed": F.lit(True),
            }.items()
        ]
    )
    own = F.struct(*[F.col(name) for name in ("replicaset_id", *TOLD)])
    winner = F.when(F.col("outcome.tuple").isNotNull(), made).otherwise(
        F.max_by(own, F.when(is_one, F.lit(1))).over(of_key())
    )
    return (
        key.withColumn(
            "made", F.when(F.col("outcome.tuple").isNotNull() & F.col("is_last"), F.col("outcome"))
        )
        .withColumn("wins", F.coalesce(is_one, F.lit(False)))
        .withColumn("winner", winner)
        .withColumn("differs", F.lit(BY_RESOLVER))
        .withColumn("fault", F.col("outcome.fault"))
    )


def _with_made(key: DataFrame) -> DataFrame:
    """Return the versions, and beside the last one of a key the tuple that was made of them all."""
    first = F.min("created").over(of_key())
    key = key.withColumn("since", first)
    values: dict[str, Column] = {
        "replicaset_id": -F.col("replicaset_id"),
        "layout": F.lit(None).cast("int"),
        "tuple": F.col("made.tuple"),
        "created": F.col("since"),
        "state": F.lit(PRESENT),
        "faults": F.lit(None),
        "unknown": F.lit(False),
        "changed": F.lit(True),
        "is_row": F.lit(False),
        "wins": F.lit(True),
        "differs": F.lit(None),
    }
    itself = F.struct(*[F.col(name) for name in DECIDED])
    kinds = {field.name: field.dataType for field in key.schema}
    beside = F.struct(*[values.get(name, F.col(name)).cast(kinds[name]).alias(name) for name in DECIDED])
    rows = F.when(F.col("made").isNotNull(), F.array(itself, beside)).otherwise(F.array(itself))
    return key.select(F.explode(rows).alias("one")).select("one.*")
