"""Clicks on ads, each with the impressions of its ad to its user in the ten minutes before."""

from meander import Flow, KafkaSink, KafkaSource, field

TEN_MINUTES = 10 * 60_000  # milliseconds


def recent(context, impressions):
    return [one for one in impressions if one[0] > context.time_ms - TEN_MINUTES]


def shown(context, impressions, impression):
    return [*recent(context, impressions), (context.time_ms, impression["place"])]


def clicked(context, impressions, click):
    for at, place in recent(context, impressions):
        context.emit({**click, "place": place, "shown": at})
    return impressions or context.forget()


def user_and_ad(record):
    return record["user"], record["ad"]


flow = Flow("ad-clicks")
impressions = flow.source(KafkaSource("impressions", time=field("at")), "impressions")
clicks = flow.source(KafkaSource("clicks", time=field("at")), "clicks")
joined = impressions.key_by(user_and_ad).connect(
    clicks.key_by(user_and_ad), "shown", list, shown, clicked, ttl=600
)
joined.sink(KafkaSink("ad-clicks"))
