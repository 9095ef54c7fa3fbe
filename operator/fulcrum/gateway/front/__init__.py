"""The front of an InferenceGateway: takes requests for several models and passes each on to a cluster's gateway."""
