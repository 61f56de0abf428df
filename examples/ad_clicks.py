"""Clicks on ads, each with the impressions of its ad to its user in the ten minutes before."""

from meander import Flow, KafkaSink, KafkaSource, field

TEN_MINUTES = 10 * 60_000  # milliseconds


def shown(context, impressions, impression):
    context.timer(context.time_ms + TEN_MINUTES)
    return [*impressions, (context.time_ms, impression["place"])]


def clicked(context, impressions, click):
    for at, place in impressions:
        context.emit({**click, "place": place, "shown": at})
    return impressions


def expired(context, impressions):
    return [one for one in impressions if one[0] + TEN_MINUTES > context.time_ms]


def user_and_ad(record):
    return record["user"], record["ad"]


flow = Flow("ad-clicks")
impressions = flow.source(KafkaSource("impressions", time=field("at")), "impressions")
clicks = flow.source(KafkaSource("clicks", time=field("at")), "clicks")
joined = impressions.key_by(user_and_ad).connect(
    clicks.key_by(user_and_ad), "shown", list, shown, clicked, expired
)
joined.sink(KafkaSink("ad-clicks"))
