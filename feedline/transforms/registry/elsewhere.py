"""How do other systems call an op, and what is to be done here instead?

Runs in: every process that reads features, where a name is no op's. Pure.
"""

from __future__ import annotations

# Their name in lower case and without underscores -> the end of the message.
ELSEWHERE: dict[str, str] = {
    "clamp": "It is called clip here",
    "firstx": "It is called first_x here",
    "sigridhash": "It is called sigrid_hash here",
    "fillmissing": "It is called fill_null here; `expr: NAME is None` is the indicator",
    "logop": "It is called log1p here",
    "differencelag": "A feature is made of one row alone: write the row before into a column when the table is made",
    "computescore": "Take one of id_overlap_count, has_id_overlap, get_max_count, get_jaccard_similarity, "
    "get_cosine_similarity, get_score_sum, get_score_min, get_score_max",
    **dict.fromkeys(
        ("categorify", "ordinalencoder", "labelencoder", "stringindexer", "stringlookup", "integerlookup"),
        "It is called vocabulary here",
    ),
    "droplowcardinality": "Leave the feature out: `feedline fit --show` says how many values a vocabulary has",
    **dict.fromkeys(("targetencoder", "meanencoder"), "It is called target_encoding here"),
    **dict.fromkeys(
        ("joingroupby", "groupbystatistics", "countencoder", "frequencyencoder"), "It is called group_statistics here"
    ),
    **dict.fromkeys(("normalize", "standardscaler"), "It is called standardize here"),
    **dict.fromkeys(("normalizeminmax", "minmaxscaler"), "It is called min_max here"),
    **dict.fromkeys(("filter", "dropna"), "Rows are dropped by source.where alone"),
    "groupby": "A feature is made of one row alone: group when the table is made, or ask for group_statistics",
    "lambdaop": "Write an expression with expr, or a Python function with allow_code: true",
    **dict.fromkeys(("addmetadata", "addproperties", "addtags"), "A feature's group says what it is for"),
    "rename": "Write NAME: {column: OLD}",
    "reducedtypesize": "A feature's group decides its type",
    "datastats": "`feedline run --json` reports statistics of every feature",
    "sampling": "Rows are sampled by source.sample",
    "valuecount": "{pad: LENGTH} makes lists equally long",
}
