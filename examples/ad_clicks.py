"""Clicks on ads, each with the impressions of its ad to its user in the ten minutes before."""

from meander import Flow, KafkaSink, KafkaSource, field

flow = Flow("ad-clicks")
impressions = flow.source(KafkaSource("impressions", time=field("at")), "impressions")
clicks = flow.source(KafkaSource("clicks", time=field("at")), "clicks")
shown, clicked = (one.key_by(lambda r: (r["user"], r["ad"])) for one in (impressions, clicks))
joined = shown.join(clicked, within=(0, 600), late=10, name="shown",
                    step=lambda i, c: {**c, "place": i["place"], "shown": i["at"]})  # fmt: skip
joined.sink(KafkaSink("ad-clicks"))
