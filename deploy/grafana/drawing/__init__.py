"""Pictures of the dashboards for a page that has no Grafana: the panels' own queries, asked of a Prometheus."""
